"""Paid answers, one file each in the data folder, until the database has them.

A worker writes the answer here first of all. If the database is unreachable or the worker dies, the
next worker that claims the unit reads the answer from the file instead of calling again. The commit of the transaction
that records the call removes the file.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import structlog

from pipeline.engine import privacy

log = structlog.get_logger(__name__)
LATE_S = 60.0
"""The age after which an answer waits for the database, or its worker is dead."""
KEPT_S = 86_400.0
"""The age after which no unit needs an answer: the sweep records its call and removes the file."""
_ERASED = {"preview": "", "error": None}


@dataclass(frozen=True)
class Subject:
    """The unit of a call, as in its record. `claim_id`: the claim that settles its answer, if any.
    `of`: the items and units that share its cost, if it has several (`accounts.charge`)."""

    flow: str
    scope_id: str
    unit: str
    claim_id: str = ""
    of: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KeptAnswer:
    """A call and its answer. `content` None: no unit needs the answer any more; record the call only."""

    path: Path
    trace: dict[str, Any]
    """The call's record."""
    content: dict[str, Any] | None


def digest_of(*parts: str) -> str:
    """The digest of these texts in order, 32 hex digits: of a request and its provider, for file names."""
    return sha256(json.dumps(parts).encode()).hexdigest()[:32]


def keep(
    folder: Path, subject: Subject, digest: str, trace: Mapping[str, Any], content: Mapping[str, Any] | None
) -> Path | None:
    """Write an answer to disk and fsync it; return its path. None if the disk refuses it: the database may still store
    it. `content` None: keep the call's record only. `digest`: see `digest_of`."""
    path = folder / f"{_beginning(subject, digest)}{subject.claim_id}-{trace['call_id']}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=privacy.PRIVATE_FOLDER)
        _write(path, _written(trace, content))
    except OSError as error:
        log.warning("answer.not_kept", flow=subject.flow, scope=subject.scope_id, error=str(error))
        return None
    return path


def recall(folder: Path, subject: Subject, digest: str) -> KeptAnswer | None:
    """Return the kept answer to this request of this unit; None without one, also once the database has it."""
    beginning = _beginning(subject, digest)
    answers = (_read(path) for path in _paths(folder) if path.name.startswith(beginning))
    return next((answer for answer in answers if answer is not None and answer.content is not None), None)


def claims(folder: Path) -> set[str]:
    """The ids of the claims that still have answers on disk, which the database lacks."""
    return {path.name.split("-")[1] for path in _paths(folder)} - {""}


def late(folder: Path) -> Iterator[KeptAnswer]:
    """Yield answers older than `LATE_S`; beyond `KEPT_S`, with `content` None. Removes unreadable files: their writers
    died while they wrote."""
    for path in _paths(folder):
        with suppress(FileNotFoundError):  # another process settled it
            age_s = time.time() - path.stat().st_mtime
            if age_s < LATE_S:
                continue
            answer = _read(path)
            if answer is None:
                path.unlink()
            else:
                yield answer if age_s < KEPT_S else KeptAnswer(path, answer.trace, None)


def erase(folder: Path, flow: str, scope_id: object = None) -> None:
    """Remove the text of answers whose scope was deleted; `scope_id` None: those of all scopes of the flow.

    The records of the calls and their costs stay, unless the disk refuses the write.
    """
    for path in _paths(folder):
        answer = _read(path)
        if answer is None or answer.trace["flow"] != flow:
            continue
        if scope_id is None or answer.trace["scope_id"] == str(scope_id):
            silent = path.with_name(f".{path.name}")
            try:
                _write(silent, _written(answer.trace | _ERASED, None))
                silent.replace(path)
            except OSError:
                discard(path)


def discard(path: Path) -> None:
    """Remove an answer's file; ignores errors."""
    with suppress(OSError):
        path.unlink()


def _beginning(subject: Subject, digest: str) -> str:
    return digest_of(subject.flow, subject.scope_id, subject.unit, digest) + "-"


def _paths(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []


def _written(trace: Mapping[str, Any], content: Mapping[str, Any] | None) -> bytes:
    return json.dumps({"trace": {**trace, "created_at": trace["created_at"].isoformat()}, "said": content}).encode()


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, privacy.PRIVATE_FILE), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> KeptAnswer | None:
    try:
        data = json.loads(path.read_bytes())
        trace = data["trace"]
        return KeptAnswer(path, trace | {"created_at": datetime.fromisoformat(trace["created_at"])}, data["said"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
