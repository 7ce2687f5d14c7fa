"""Read pages again with Tesseract, where it is installed, if text recognition is unsure of them.

Processes that read files may not start programs. So a child that is unsure writes the page's pixels to a new file, this
process runs Tesseract on it, within limits and without our environment, and the child reads Tesseract's output.
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

PAGE, DOUBTFUL_LINES, SCRIPT, WORDS = "page.pgm", "doubtful.pgm", "page.osd", "page.tsv"
"""Names in the folder shared with the process that runs Tesseract: the page's picture, the same picture without the
lines that are sure, the page's script as Tesseract writes it, the words."""
_MAX_OUTPUT_BYTES = 16 * 2**20
_TICK_S = 0.1
_ASK_S, _ASK_MB = 10.0, 1_000  # for its version and languages
_MAX_PRINTED_BYTES = 65_536
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
"""Language packs for the scripts that Tesseract distinguishes, the commonest first."""


class Tesseract(NamedTuple):
    """An installed Tesseract and its language packs."""

    path: str
    version: str
    languages: tuple[str, ...]


@cache
def installed() -> Tesseract | None:
    """Return the Tesseract on this process's PATH; None if there is none, or it does not work. Checked once a
    process."""
    path = shutil.which("tesseract")
    if path is None:
        return None
    version = _printed(path, "--version")
    languages = _printed(path, "--list-langs") if version else []
    return Tesseract(path, version[0], tuple(sorted(languages[1:]))) if languages else None


def read(folder: Path, limits: Limits, wanted: Wanted) -> bool:
    """Let Tesseract read the doubtful lines in this folder and write its words beside them. False: Tesseract is
    missing, has no language pack for the page's script, fails or exceeds a limit, or `wanted` returned False."""
    program = installed()
    if program is None:
        return False
    deadline = time.monotonic() + limits.timeout_s

    def ran(picture: str, *options: str) -> bool:
        command = [program.path, picture, Path(WORDS).stem, *options]
        return _ended_well(command, limits, wanted, deadline, cwd=folder)

    # Finding the script takes as long as reading, and a few doubtful lines show a wrong one: noise looks like Arabic.
    if "osd" in program.languages and not (folder / SCRIPT).exists():
        ran(PAGE, "-l", "osd", "--psm", "0")
    languages = _languages(program, _script(folder))
    return bool(languages) and ran(DOUBTFUL_LINES, "-l", "+".join(languages), "--psm", "3", "tsv")


def _script(folder: Path) -> str:
    """Return the script of most of the page; empty if unknown."""
    with suppress(OSError):
        text = (folder / SCRIPT).read_text(encoding="utf-8", errors="replace")
        scripts = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Script:")]
        return scripts[0] if scripts else ""
    return ""


def _languages(program: Tesseract, script: str) -> list[str]:
    """Return the language packs to read with: those of the script, and English for words among it; empty if Tesseract
    has none for it."""
    packs = [language for language in program.languages if language != "osd" and "/" not in language]
    wanted = _OF_SCRIPT.get(script, ())
    known = [language for language in wanted if language in packs][:_LANGUAGES]
    if script and not known:
        return []
    chosen = known or packs[:_LANGUAGES]
    return [*chosen, "eng"] if "eng" in packs and "eng" not in chosen else chosen


def _printed(path: str, option: str) -> list[str]:
    """Return the lines that the program prints; none if it fails."""
    with TemporaryFile() as out, TemporaryFile() as err:
        limits = page_limits(_ASK_S, _ASK_MB)
        if not _ended_well([path, option], limits, lambda: True, time.monotonic() + _ASK_S, stdout=out, stderr=err):
            return []
        for file in (out, err):
            file.seek(0)
            if printed := file.read(_MAX_PRINTED_BYTES):
                return printed.decode("utf-8", "replace").splitlines()
    return []


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in ("PATH", "TESSDATA_PREFIX") if name in os.environ}
    return {**passed_on, "LC_ALL": "C", "OMP_THREAD_LIMIT": "1"}


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
    """Run the command and return whether it succeeded; kill it and return False if it exceeds a limit or `wanted`
    returns False. `deadline`: monotonic time."""
    if time.monotonic() > deadline or not wanted():
        return False
    try:
        # In its own process group: `tesseract` may be a script that starts the program. If this process is killed, the
        # limit on processor time ends it.
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
        with suppress(ProcessLookupError):  # the whole group has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _bound(pid: int, limits: Limits) -> None:
    """Limit the process's resources; only Linux can do that from outside."""
    if sys.platform == "linux":
        memory, seconds = limits.memory_mb * 10**6, int(limits.timeout_s) + 1
        bounds = {
            resource.RLIMIT_AS: memory,
            resource.RLIMIT_CPU: seconds,
            resource.RLIMIT_FSIZE: _MAX_OUTPUT_BYTES,
            resource.RLIMIT_CORE: 0,
        }
        for resource_id, value in bounds.items():
            with suppress(OSError, ValueError):
                resource.prlimit(pid, resource_id, (value, value))
