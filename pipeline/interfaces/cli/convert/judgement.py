"""Judges an existing result against its source: up to date, to replace, or kept because the user may have edited it."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.interfaces.cli.convert.targets import Target
    from pipeline.interfaces.cli.results import Origin, Record
    from pipeline.operations.documents import Document
    from pipeline.reading.export.formats import Format, Shape


class Verdict(StrEnum):
    """What to do with a target."""

    CONVERT = "CONVERT"
    UP_TO_DATE = "UP_TO_DATE"
    KEPT = "KEPT"


@dataclass(frozen=True)
class Judgement:
    """A verdict and its reason, in words. `behind`: kept, although its source or options have changed."""

    verdict: Verdict
    reason: str = ""
    behind: bool = False


def judge(target: "Target", origin: "Origin", *, keep: bool = False, redo: bool = False) -> Judgement:
    """Judge the result at `target` against the source and options that a new conversion would use. Without a result:
    CONVERT, or KEPT if its manifest would replace another file.

    `keep`: replace no result. `redo`: treat no result as up to date.
    """
    from pipeline.interfaces.cli.results import Record, manifest_in_the_way, sha256

    path = target.path
    if path is None:
        return Judgement(Verdict.CONVERT)
    if not path.exists():
        other = manifest_in_the_way(path)
        return _kept(other, behind=not keep) if other else Judgement(Verdict.CONVERT)
    record = Record.of(path) if path.is_file() else None
    text = sha256(path) if record else ""
    news = _news(record, origin, redo=redo)
    if record and text == record.sha256 and not news:
        return Judgement(Verdict.UP_TO_DATE)
    foreign = _foreign(path, record, text, origin)
    if not foreign and not keep:
        return Judgement(Verdict.CONVERT)
    but_kept = f"{path} {foreign}, and is kept" if foreign else f"{path} is kept"
    but = f", but {news}" if news else "; its source has not changed" if record else ""
    return _kept(but_kept + but, behind=not keep and bool(news or not record))


def judge_folders(document: "Document", path: Path, form: "Format", shape: "Shape") -> Judgement:
    """Judge the folders beside a result: KEPT if their files would replace others, else CONVERT."""
    from pipeline.interfaces.cli.results import in_the_way

    why = in_the_way(document, path, form, shape)
    return _kept(why, behind=True) if why else Judgement(Verdict.CONVERT)


def _kept(why: str, *, behind: bool) -> Judgement:
    return Judgement(Verdict.KEPT, why + (": use --force to replace it" if behind else ""), behind)


def _foreign(path: Path, record: "Record | None", text: str, origin: "Origin") -> str:
    """Why the command may not replace a result, as words to follow its path; empty if it may."""
    if record is None:
        from pipeline.interfaces.cli.results import predates_records

        if predates_records(path):
            return "comes from an older version, which did not record its source"
        return "does not come from `penstock convert`"
    if text not in {record.sha256, record.replaced}:
        return "was edited"
    is_same = record.source_sha256 == origin.sha256 or record.source == os.path.relpath(origin.source, path.parent)
    return "" if is_same else f"is the result of {Path(os.path.normpath(path.parent / record.source))}"


def _news(record: "Record | None", origin: "Origin", *, redo: bool) -> str:
    """Why to convert the source again: it or the options have changed, the user asked for it (`redo`), or pages are
    missing. Empty otherwise, and without a record."""
    if record is None:
        return ""
    if record.source_sha256 != origin.sha256:
        return "it is older than its source"
    if record.options != origin.options:
        changed = [name for name, value in origin.options.items() if record.options.get(name) != value]
        return f"it was made with other options ({', '.join(changed)})"
    return "you asked to convert it again" if redo else "" if record.complete else "pages are missing from it"
