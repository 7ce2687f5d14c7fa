"""The decision about an existing result, from its manifest."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline.engine.errors import UserError
from pipeline.flows.documents.submission import Options
from pipeline.interfaces.cli.convert.inbox import Inbox
from pipeline.interfaces.cli.convert.job import Job
from pipeline.interfaces.cli.convert.judgement import Verdict, judge
from pipeline.interfaces.cli.convert.options import Wish
from pipeline.interfaces.cli.convert.run import finish
from pipeline.interfaces.cli.convert.targets import Target
from pipeline.interfaces.cli.results import Origin, Record, sha256, write
from pipeline.reading.export.formats import Format
from pipeline.reading.files.inputs import manifest_path


@dataclass
class Folder:
    """`in/a.pdf`, and its result at `out/a.md`."""

    path: Path
    options: dict[str, str | bool] = field(default_factory=lambda: {"pages": "", "provider": "local"})

    @property
    def source(self) -> Path:
        return self.path / "in" / "a.pdf"

    @property
    def result(self) -> Path:
        return self.path / "out" / "a.md"

    def document(self, text: str, *, complete: bool = True) -> Any:
        status = SimpleNamespace(name="COMPLETED" if complete else "PARTIAL_FAILED")
        stored = self.path / "stored.json"
        stored.write_text('{"version": 1, "document": {}}')
        pictures = self.path / "pictures"
        return SimpleNamespace(
            id="d1",
            status=status,
            pictures_folder=pictures if pictures.exists() else None,
            manifest_path=stored,
            result=lambda form, markers: (
                text if form is Format.MD else '{"version": 1, "document": {}, "pages": []}'
            ).encode(),
            merged_path="somewhere",
            outdated=False,
            completed_count=1,
        )

    def make(self, text: str = "text", *, complete: bool = True, form: Format = Format.MD) -> None:
        write(self.document(text, complete=complete), self.result.with_suffix(form.suffix), form, self.origin())

    def origin(self, source: Path | None = None) -> Origin:
        return Origin(source or self.source, sha256(source or self.source), self.options)

    def judge(self, **wish: bool) -> tuple[Verdict, bool, str]:
        judgement = judge(Target(self.source, self.result), self.origin(), **wish)
        return judgement.verdict, judgement.behind, judgement.reason


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    prepared = Folder(tmp_path)
    prepared.source.parent.mkdir()
    prepared.source.write_bytes(b"source")
    return prepared


def edit(folder: Folder) -> None:
    folder.result.write_text("mine")


def change(folder: Folder) -> None:
    folder.source.write_bytes(b"changed")


def ask_for_other_pages(folder: Folder) -> None:
    folder.options = {**folder.options, "pages": "1-3"}


def lose_manifest(folder: Folder) -> None:
    manifest_path(folder.result).unlink()


def damage_manifest(folder: Folder) -> None:
    manifest_path(folder.result).write_text('{"results": {"a.md": {"source": 1}}}')


def leave_result_unwritten(folder: Folder) -> None:
    """Leave the files of a process that was killed between replacing the manifest and the result."""
    before = folder.result.read_text()
    folder.make("new")
    folder.result.write_text(before)


def make_with_an_older_version(folder: Folder) -> None:
    """Write a manifest without records, like an earlier version."""
    manifest = manifest_path(folder.result)
    manifest.write_text(json.dumps({"version": 1, "document": {}, "pages": []}))


CASES: list[tuple[list[Callable[[Folder], None]], Verdict, bool, str]] = [
    ([], Verdict.UP_TO_DATE, False, ""),
    ([change], Verdict.CONVERT, False, ""),
    ([ask_for_other_pages], Verdict.CONVERT, False, ""),
    ([leave_result_unwritten], Verdict.CONVERT, False, ""),
    ([edit], Verdict.KEPT, False, "was edited, and is kept; its source has not changed"),
    ([edit, change], Verdict.KEPT, True, "was edited, and is kept, but it is older than its source: use --force"),
    ([edit, ask_for_other_pages], Verdict.KEPT, True, "made with other options (pages): use --force"),
    ([lose_manifest], Verdict.KEPT, True, "does not come from `penstock convert`, and is kept: use --force"),
    ([damage_manifest], Verdict.KEPT, True, "does not come from"),
    (
        [make_with_an_older_version],
        Verdict.KEPT,
        True,
        "an older version, which did not record its source, and is kept",
    ),
]


@pytest.mark.parametrize(("events", "verdict", "behind", "reason"), CASES)
def test_our_own_result_is_replaced_only_by_something_new(
    folder: Folder, events: list[Callable[[Folder], None]], verdict: Verdict, behind: bool, reason: str
) -> None:
    assert folder.judge()[0] is Verdict.CONVERT
    folder.make()
    for event in events:
        event(folder)
    judgement = folder.judge()
    assert judgement[:2] == (verdict, behind)
    assert reason in judgement[2]
    with_keep = folder.judge(keep=True)
    assert with_keep[0] is (Verdict.UP_TO_DATE if verdict is Verdict.UP_TO_DATE else Verdict.KEPT), (
        "with --keep nothing is"
    )
    assert not with_keep[1]
    assert "--force" not in with_keep[2]


def test_a_result_with_gaps_is_converted_again_and_so_is_one_with_redo(folder: Folder) -> None:
    folder.make(complete=False)
    assert folder.judge()[0] is Verdict.CONVERT
    folder.make()
    assert folder.judge(redo=True)[0] is Verdict.CONVERT


def test_result_of_another_file_is_kept_unless_that_is_the_same(folder: Folder) -> None:
    folder.make()
    moved = folder.path / "elsewhere.pdf"
    folder.source.rename(moved)
    target = Target(moved, folder.result)
    assert judge(target, folder.origin(moved)).verdict is Verdict.UP_TO_DATE
    moved.write_bytes(b"another")
    judgement = judge(target, folder.origin(moved))
    assert (judgement.verdict, judgement.behind) == (Verdict.KEPT, True)
    assert f"is the result of {folder.source}" in judgement.reason


@pytest.mark.parametrize("force", [False, True])
def test_an_edit_made_during_the_conversion_is_kept_unless_forced(folder: Folder, force: bool) -> None:
    folder.make()
    change(folder)
    document = folder.document("new")
    job = Job(Target(folder.source, folder.result), origin=folder.origin(), document=document)
    edit(folder)
    finish(job, document, Wish(Options(), force=force))
    assert folder.result.read_text() == ("new" if force else "mine")
    assert job.status == ("COMPLETED" if force else "KEPT")
    assert ("was edited, and is kept" in job.problem) is not force


@pytest.mark.parametrize(
    "lie",
    ['"a.md"', "[]", "null", '{"../../a.md": {}}', '{"a.md": null}', '{"a.md": []}', "[" * 200_000],
)
def test_a_manifest_with_invalid_results_counts_as_foreign(folder: Folder, lie: str) -> None:
    folder.make()
    manifest_path(folder.result).write_text(f'{{"results": {lie}}}')
    judgement = judge(Target(folder.source, folder.result), folder.origin())
    assert (judgement.verdict, judgement.behind) == (Verdict.KEPT, True)
    folder.make("replaced")  # by force
    assert judge(Target(folder.source, folder.result), folder.origin()).verdict is Verdict.UP_TO_DATE


@pytest.mark.parametrize("lie", [{"sha256": ["a"]}, {"source": None, "source_sha256": ""}, {"options": ["pages"]}])
def test_a_record_with_wrong_types_is_ignored(folder: Folder, lie: dict[str, Any]) -> None:
    folder.make()
    manifest = json.loads(manifest_path(folder.result).read_text())
    manifest["results"]["a.md"] |= lie
    manifest_path(folder.result).write_text(json.dumps(manifest))
    assert Record.of(folder.result) is None
    assert judge(Target(folder.source, folder.result), folder.origin()).verdict is Verdict.KEPT


def test_a_document_deleted_during_the_conversion_fails_its_own_file_alone(folder: Folder) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise UserError("there is no document 1", code="unknown_document")

    job = Job(Target(folder.source, folder.result))
    job.document = document = folder.document("")
    document.result = fail
    finish(job, document, Wish(Options()))
    assert (job.error, job.written) == ("there is no document 1", None)


def test_a_watched_file_without_read_permission_is_refused_with_a_message(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(folder.source))

    monkeypatch.setattr(Wish, "origin", refuse)
    messages: list[str] = []
    progress = Mock(note=messages.append)
    inbox = Inbox(folder.source.parent, folder.result.parent, Wish(Options()), [Format.MD], progress)
    inbox._take(folder.source, Format.MD)
    assert messages == [f"{folder.source}: [red]REFUSED[/red]: no permission: {folder.source}"]
    assert inbox.summary == "0 written, 1 refused."


def test_named_pipe_is_nothing_to_read_from(folder: Folder) -> None:
    pipe = folder.path / "pipe.pdf"
    os.mkfifo(pipe)
    with pytest.raises(OSError):
        Wish(Options()).origin(pipe, Format.MD)


def test_formats_share_a_manifest_and_each_keeps_its_record(folder: Folder) -> None:
    folder.make()
    folder.make(form=Format.JSON)
    assert folder.judge()[0] is Verdict.UP_TO_DATE
    assert Record.of(folder.result.with_suffix(".json")) is not None
    folder.result.unlink()
    folder.make(form=Format.JSON)
    assert list(json.loads(manifest_path(folder.result).read_text())["results"]) == ["a.json"]


def finished(folder: Folder, *, force: bool = False, form: Format = Format.MD) -> Job:
    """Finish a job for `in/a.pdf`, which writes its result or keeps the old one."""
    document = folder.document("text")
    target = Target(folder.source, folder.result.with_suffix(form.suffix))
    job = Job(target, form, origin=folder.origin(), document=document)
    finish(job, document, Wish(Options(), force=force))
    return job


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 3, "results": {"a.md": {}}}', "[" * 200_000])
def test_another_program_s_manifest_is_kept_unless_forced(folder: Folder, content: str, force: bool) -> None:
    manifest = manifest_path(folder.result)
    manifest.parent.mkdir()
    manifest.write_text(content)
    assert folder.judge()[:2] == (Verdict.KEPT, True), "before any work is done"
    job = finished(folder, force=force)
    assert (manifest.read_text() == content) is not force
    assert folder.result.exists() is force
    assert job.exit_code == (0 if force else 1)
    assert force or f"{manifest} does not come from `penstock convert`, or was edited, and stays" in job.problem


@pytest.mark.parametrize("other", ["fifo", "folder", "link to nowhere", "link to a device"])
def test_a_manifest_that_is_not_a_file_is_kept_and_blocks_nothing(folder: Folder, other: str) -> None:
    manifest = manifest_path(folder.result)
    manifest.parent.mkdir()
    if other == "fifo":
        os.mkfifo(manifest)
    elif other == "folder":
        manifest.mkdir()
    else:
        manifest.symlink_to("/dev/zero" if other == "link to a device" else folder.path / "nothing")
    assert finished(folder).status == "KEPT"
    assert not folder.result.exists()


def test_a_result_is_never_replaced_by_the_manifest_of_another(folder: Folder) -> None:
    layout = folder.result.with_name("a.manifest.json")
    write(folder.document(""), layout, Format.JSON, folder.origin())
    before = layout.read_text()
    assert "pages" in json.loads(before)
    assert finished(folder).status == "KEPT"
    assert layout.read_text() == before


@pytest.mark.parametrize(
    "foreign", ["a file", "a link", "a link for the folder", "a file for the folder", "an edited one"]
)
@pytest.mark.parametrize("force", [False, True])
def test_foreign_pictures_are_kept_unless_forced(folder: Folder, foreign: str, force: bool) -> None:
    pictures, beside, outside = (folder.path / name for name in ("pictures", "out/a.pictures", "outside.png"))
    pictures.mkdir()
    (pictures / "page-0001-1.png").write_bytes(b"new")
    outside.write_bytes(b"theirs")
    beside.mkdir(parents=True)
    there = beside / "page-0001-1.png"
    if foreign == "a file":
        there.write_bytes(b"theirs")
    elif foreign == "a link":
        there.symlink_to(outside)
    elif foreign == "an edited one":
        there.unlink(missing_ok=True)
        assert finished(folder).written
        change(folder)
        there.write_bytes(b"theirs")
    else:
        beside.rmdir()
        there = outside if foreign == "a link for the folder" else beside
        (folder.path / "elsewhere").mkdir()
        beside.symlink_to(folder.path / "elsewhere") if there is outside else beside.write_bytes(b"theirs")
    job = finished(folder, force=force)
    if not force:
        assert (job.status, job.exit_code) == ("KEPT", 1)
        assert there.read_bytes() == b"theirs"
        assert str(beside) in job.problem
    assert outside.read_bytes() == b"theirs", "links are replaced, not followed"


def test_pictures_of_ours_are_replaced_and_files_beside_them_stay(folder: Folder) -> None:
    pictures, beside = folder.path / "pictures", folder.path / "out" / "a.pictures"
    pictures.mkdir()
    for content in (b"old", b"new"):
        (pictures / "page-0001-1.png").write_bytes(content)
        folder.source.write_bytes(content)
        assert finished(folder).written
        assert (beside / "page-0001-1.png").read_bytes() == content
        (beside / "mine.png").write_bytes(b"mine")
    folder.make(form=Format.JSON)  # shares the manifest
    (pictures / "page-0001-1.png").write_bytes(b"newest")
    folder.source.write_bytes(b"newest")
    assert finished(folder).written
    assert (beside / "mine.png").read_bytes() == b"mine"
    assert {path.name for path in beside.iterdir()} == {"page-0001-1.png", "mine.png"}
