"""Versions of Redis and Valkey: which of two is newer, and which has known faults in what any client may run."""

import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

_SAID = re.compile(r"\b(Redis|Valkey) server v=(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_MENDED = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""The first release of each line without CVE-2025-49844, CVE-2024-46981 and their like: Lua that leaves its bounds."""
FAULTS = "its Lua has known faults (CVE-2025-49844, CVE-2024-46981), which whoever may send it commands can use"


@dataclass(frozen=True, order=True)
class Version:
    """What a server says it is; `numbers` come first, so that the newer one is the greater."""

    numbers: tuple[int, int, int]
    name: str = "redis"
    """`redis` or `valkey`."""

    @classmethod
    def of(cls, text: str, name: str = "redis") -> Self:
        """From `7.2.4`; what is no number counts as 0."""
        found = [int(part) if part.isdecimal() and len(part) < 5 else 0 for part in text.split(".")[:3]]
        major, minor, patch = [*found, 0, 0, 0][:3]
        return cls((major, minor, patch), name if name in _MENDED else "redis")

    @property
    def has_known_faults(self) -> bool:
        """A distribution may have mended it without another number."""
        major, minor, patch = self.numbers
        mended = _MENDED[self.name]
        if (major, minor) in mended:
            return patch < mended[major, minor]
        return (major, minor) < max(mended)

    def __str__(self) -> str:
        return f"{self.name.capitalize()} {'.'.join(map(str, self.numbers))}"


def of_program(path: Path) -> Version:
    """The version of this program; 0.0.0 if it says none."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    return _asked(path, changed)


@lru_cache(maxsize=8)
def _asked(path: Path, changed: int) -> Version:  # noqa: ARG001  # a program that was replaced is asked again
    try:
        done = subprocess.run(  # noqa: S603  # a server that would be started anyway
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return Version((0, 0, 0))
    found = _SAID.search(done.stdout)
    if found is None:
        return Version((0, 0, 0))
    name, *numbers = found.groups()
    return Version((int(numbers[0]), int(numbers[1]), int(numbers[2])), name.lower())
