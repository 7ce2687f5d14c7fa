"""A second opinion on pages that text recognition is unsure of: Tesseract, where it is installed.

The processes that read files may not start programs. So the one that is unsure writes the page's pixels anew, this one
runs Tesseract on them, within bounds and without our environment, and the other reads what Tesseract wrote.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from pipeline.reading.sandbox.limits import Limits, Wanted, page_limits

PICTURE, WORDS = "page.pgm", "page.tsv"
"""Names of the page's picture and of the words in it, in the folder that is shared with who runs Tesseract."""
_MAX_OUTPUT_BYTES = 16 * 2**20
_TICK_S = 0.1
_ASK_S, _ASK_MB = 10.0, 1_000  # for its version and languages
_MAX_SAID_BYTES = 65_536
_LANGUAGES = 3
_OF_SCRIPT = {
    "Arabic": ("ara", "fas", "urd"),
    "Armenian": ("hye",),
    "Bengali": ("ben",),
    "Cyrillic": ("rus", "ukr", "bul"),
    "Devanagari": ("hin", "mar", "nep"),
    "Georgian": ("kat",),
    "Greek": ("ell",),
    "Han": ("chi_sim", "chi_tra", "jpn"),
    "Hangul": ("kor",),
    "Hebrew": ("heb", "yid"),
    "Japanese": ("jpn",),
    "Korean": ("kor",),
    "Latin": ("eng", "deu", "fra", "spa", "ita", "por", "nld", "pol", "tur", "vie"),
    "Thai": ("tha",),
}
"""Packs of the scripts that Tesseract tells apart, the commonest first."""


class Tesseract(NamedTuple):
    """An installed Tesseract and its language packs."""

    path: str
    version: str
    languages: tuple[str, ...]


@cache
def installed() -> Tesseract | None:
    """The Tesseract on this process's PATH, if it works; asked once."""
    path = shutil.which("tesseract")
    if path is None:
        return None
    version = _said(path, "--version")
    languages = _said(path, "--list-langs") if version else []
    return Tesseract(path, version[0], tuple(sorted(languages[1:]))) if languages else None


def read(folder: Path, limits: Limits, wanted: Wanted) -> bool:
    """Whether Tesseract has read the picture in this folder; its words are then beside it. No error if it could not."""
    program = installed()
    if program is None:
        return False
    deadline = time.monotonic() + limits.timeout_s
    languages = _languages(program, _script(program, folder, limits, wanted, deadline))
    if not languages:
        return False
    return _ran(program, ["-l", "+".join(languages), "--psm", "3", "tsv"], folder, limits, wanted, deadline)


def _script(program: Tesseract, folder: Path, limits: Limits, wanted: Wanted, deadline: float) -> str:
    """The script that most of the picture is in; empty if that cannot be told."""
    if "osd" not in program.languages:
        return ""
    if not _ran(program, ["-l", "osd", "--psm", "0"], folder, limits, wanted, deadline):
        return ""
    with suppress(OSError):
        text = (folder / WORDS).with_suffix(".osd").read_text(encoding="utf-8", errors="replace")
        found = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Script:")]
        return found[0] if found else ""
    return ""


def _languages(program: Tesseract, script: str) -> list[str]:
    """The packs to read with: those of the script, and English for what stands among it."""
    packs = [language for language in program.languages if language != "osd" and "/" not in language]
    wanted = _OF_SCRIPT.get(script, ())
    known = [language for language in wanted if language in packs][:_LANGUAGES]
    if script and not known:
        return []
    chosen = known or packs[:_LANGUAGES]
    return [*chosen, "eng"] if "eng" in packs and "eng" not in chosen else chosen


def _said(path: str, option: str) -> list[str]:
    """The lines that it prints; none if it fails."""
    with TemporaryFile() as out, TemporaryFile() as err:
        limits = page_limits(_ASK_S, _ASK_MB)
        if not _ended_well([path, option], limits, lambda: True, time.monotonic() + _ASK_S, stdout=out, stderr=err):
            return []
        for file in (out, err):
            file.seek(0)
            if said := file.read(_MAX_SAID_BYTES):
                return said.decode("utf-8", "replace").splitlines()
    return []


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in ("PATH", "TESSDATA_PREFIX") if name in os.environ}
    return {**passed_on, "LC_ALL": "C", "OMP_THREAD_LIMIT": "1"}


def _ran(program: Tesseract, options: list[str], folder: Path, limits: Limits, wanted: Wanted, deadline: float) -> bool:
    """Whether Tesseract ended well with the picture in this folder."""
    command = [program.path, PICTURE, Path(WORDS).stem, *options]
    return _ended_well(command, limits, wanted, deadline, cwd=folder)


def _ended_well(
    command: list[str],
    limits: Limits,
    wanted: Wanted,
    deadline: float,
    *,
    cwd: Path | None = None,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
) -> bool:
    """Whether the command ended well; killed if it takes too much, or if its result is not wanted any more."""
    if time.monotonic() > deadline or not wanted():
        return False
    try:
        # In a group of its own: `tesseract` may be a script that starts the program. If this process is killed, the
        # bound of its processor time ends it.
        process = subprocess.Popen(  # noqa: S603  # a program that the machine's owner installed
            command,
            cwd=cwd,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
        )
    except OSError:
        return False
    try:
        _bound(process.pid, limits)
        while process.poll() is None:
            if time.monotonic() > deadline or not wanted():
                return False
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TICK_S)
        return process.returncode == 0
    finally:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _bound(pid: int, limits: Limits) -> None:
    """Limit what the process may take; Linux alone knows how to do that from outside."""
    if sys.platform == "linux":
        memory, seconds = limits.memory_mb * 10**6, int(limits.timeout_s) + 1
        bounds = {
            resource.RLIMIT_AS: memory,
            resource.RLIMIT_CPU: seconds,
            resource.RLIMIT_FSIZE: _MAX_OUTPUT_BYTES,
            resource.RLIMIT_CORE: 0,
        }
        for what, value in bounds.items():
            with suppress(OSError, ValueError):
                resource.prlimit(pid, what, (value, value))
