"""The wait at the shell: `penstock convert` beside markitdown's command line, `--help` and `status`.

Both convert the same page with a text layer, in turns. Each turn gets a new file, so that the cache has no answer.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.suite import Figures
from benchmarks.support import (
    BenchmarkError,
    new_folder,
    penstock,
    progress,
    spread,
    stack,
    text_document,
    users_of,
    wait_until,
)
from pipeline.settings import get_settings

LIMIT_S = 90.0
END_S = 60.0
AT_ONCE_GONE = {"PENSTOCK_STACK_LINGER_S": "0"}
"""The stack of a command ends with the command, so that the next command starts cold, too."""


class Turn(NamedTuple):
    """Seconds that each command took for a page."""

    ours_s: float
    markitdown_s: float


def cold(rounds: int = 3) -> Figures:
    """Measure cold_convert_s and convert_vs_markitdown_cold: an empty data folder and no stack."""
    turns = _cold_turns([new_folder(f"cold-{number}") for number in range(rounds)])
    return {
        "cold_convert_s": round(median(turn.ours_s for turn in turns), 3),
        "convert_vs_markitdown_cold": _ratio(turns),
        **_facts(turns),
    }


def warm(rounds: int = 5) -> Figures:
    """Measure warm_convert_s and convert_vs_markitdown_warm: beside `penstock up`."""
    with stack(api=True):
        turns = _warm_turns(rounds)
    return {
        "warm_convert_s": round(median(turn.ours_s for turn in turns), 3),
        "convert_vs_markitdown_warm": _ratio(turns),
        **_facts(turns),
    }


def first_and_cold(firsts: int = 3, rounds: int = 7) -> Figures:
    """Measure first_vs_markitdown with an empty data folder, then cold_vs_markitdown with a used one."""
    folders = [new_folder(f"folder-{number}") for number in range(firsts)]
    first = _cold_turns(folders)
    used = _cold_turns([folders[number % firsts] for number in range(rounds)])
    return {
        "first_vs_markitdown": _ratio(first),
        "cold_vs_markitdown": _ratio(used),
        "the first time: Penstock": spread([turn.ours_s for turn in first], "s"),
        **_facts(used),
    }


def beside_stack(rounds: int = 7) -> Figures:
    """Measure warm_vs_markitdown, status_s and help_s in turns, beside `penstock up`."""
    with stack(api=True):
        turns = _warm_turns(rounds)
        progress("penstock --help, penstock status")
        helped, stated = [], []
        for _ in range(rounds):
            helped.append(shell_s([*penstock(), "--help"]))
            stated.append(shell_s([*penstock(), "status"]))
    return {
        "warm_vs_markitdown": _ratio(turns),
        "help_s": round(median(helped), 2),
        "status_s": round(median(stated), 2),
        **_facts(turns),
        "penstock --help": spread(helped, "s"),
        "penstock status": spread(stated, "s"),
    }


def _cold_turns(folders: Sequence[Path]) -> list[Turn]:
    """Take a turn in each of these data folders. No stack runs in them."""
    turns = []
    for number, folder in enumerate(folders):
        progress(f"cold, {number + 1} of {len(folders)}")
        turns.append(_turn(f"cold-{folder.name}-{number}", folder, AT_ONCE_GONE))
        wait_until("the end of the stack", partial(is_unused, folder), END_S, every_s=0.1)
    return turns


def is_unused(folder: Path) -> bool:
    return not users_of(folder)


def _warm_turns(rounds: int) -> list[Turn]:
    """Take turns beside the running stack, after one turn that warms up both commands."""
    folder = get_settings().data_dir
    progress(f"beside penstock up, {rounds} times")
    return [_turn(f"warm-{number}", folder) for number in range(rounds + 1)][1:]


def _turn(name: str, data_dir: Path, env: dict[str, str] | None = None) -> Turn:
    if not all(map(find_spec, ("markitdown", "pdfminer", "pdfplumber"))):
        raise BenchmarkError(f"markitdown is not installed: {sys.executable} -m pip install 'markitdown[pdf]'")
    source = text_document(name, 1)
    penstock_md, markitdown_md = source.with_suffix(".md"), source.with_suffix(".markitdown.md")
    own = {"PENSTOCK_DATA_DIR": str(data_dir), **(env or {})}
    ours_s = shell_s([*penstock(), "convert", str(source), "-o", str(penstock_md)], own)
    markitdown_s = shell_s([sys.executable, "-m", "markitdown", str(source), "-o", str(markitdown_md)])
    for result in (penstock_md, markitdown_md):
        if not result.exists() or "text layer" not in result.read_text():
            raise BenchmarkError(f"the page's text is not in {result}")
    return Turn(ours_s, markitdown_s)


def shell_s(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Run a command and return its seconds. Raises `BenchmarkError` if the command fails."""
    started = time.monotonic()
    ended = subprocess.run(
        list(command), env={**os.environ, **(env or {})}, check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    taken_s = time.monotonic() - started
    if ended.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr[-1000:]}")
    return taken_s


def _ratio(turns: Sequence[Turn]) -> float:
    return round(median(turn.ours_s for turn in turns) / median(turn.markitdown_s for turn in turns), 2)


def _facts(turns: Sequence[Turn]) -> Figures:
    return {
        "Penstock": spread([turn.ours_s for turn in turns], "s"),
        "markitdown": spread([turn.markitdown_s for turn in turns], "s"),
    }
