"""The time until `penstock convert` writes to a terminal, on a pseudo-terminal, with a clock on its imports."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from statistics import median

from benchmarks.commands import AT_ONCE_GONE, END_S, LIMIT_S, is_unused
from benchmarks.suite import Figures
from benchmarks.support import ROOT, BenchmarkError, new_folder, progress, spread, text_document, wait_until

ROWS, COLUMNS = 24, 100
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\s")


def measure(rounds: int = 7) -> Figures:
    """Measure first_progress_s: from the first import to the first visible text, without the time of imports.

    No stack runs. The first round, whose data folder is empty, does not count.
    """
    folder = new_folder("terminal")
    waits, imports = [], []
    for number in range(rounds + 1):
        progress(f"the first line on a terminal, {number} of {rounds}")
        source, clock = text_document(f"terminal-{number}", 1), folder.with_name(f"imports-{number}")
        seen_at = _first_text_at(source, clock, folder)
        wait_until("the end of the stack", lambda: is_unused(folder), END_S, every_s=0.1)
        took = [(float(start), float(ended)) for start, ended in map(str.split, clock.read_text().splitlines())]
        imported_s = sum(min(ended, seen_at) - start for start, ended in took if start < seen_at)
        imports.append(imported_s)
        waits.append(seen_at - took[0][0] - imported_s)
    return {
        "first_progress_s": round(median(waits[1:]), 2),
        "each": spread(waits[1:], "s"),
        "imports before it": spread(imports[1:], "s"),
    }


def _first_text_at(source: Path, clock: Path, data_dir: Path) -> float:
    """Convert `source` on a terminal; return the time of the first visible text."""
    command = [sys.executable, "-m", "benchmarks.import_clock", str(clock), "convert", str(source)]
    env = {**os.environ, "PENSTOCK_DATA_DIR": str(data_dir), "TERM": "xterm-256color", **AT_ONCE_GONE}
    terminal, shell_end = pty.openpty()
    termios.tcsetwinsize(shell_end, (ROWS, COLUMNS))
    output = ["-o", str(source.with_suffix(".md"))]
    with subprocess.Popen(
        [*command, *output], cwd=ROOT, env=env, stdin=shell_end, stdout=shell_end, stderr=shell_end
    ) as running:
        os.close(shell_end)
        text, seen_at = "", 0.0
        while some := _read(terminal):
            now = time.monotonic()
            text += some
            if not seen_at and _CONTROL.sub("", text):
                seen_at = now
        os.close(terminal)
        if running.wait() != 0 or not seen_at:
            raise BenchmarkError(f"penstock convert ended with {running.returncode} on a terminal: {text[-1000:]}")
    return seen_at


def _read(terminal: int) -> str:
    """Return the next output; an empty text at the end."""
    if not select.select([terminal], [], [], LIMIT_S)[0]:
        raise BenchmarkError(f"penstock convert wrote nothing to a terminal for {LIMIT_S:g} s")
    try:
        return os.read(terminal, 1 << 16).decode(errors="replace")
    except OSError:  # the command has closed it
        return ""
