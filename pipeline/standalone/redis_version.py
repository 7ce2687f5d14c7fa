"""Versions of Redis and Valkey: compare them, and find those with known faults that any client can exploit."""

import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

_VERSION = re.compile(r"\b(Redis|Valkey) server v=(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_PATCHED = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""The first release of each line without CVE-2025-49844, CVE-2024-46981 and similar faults of Lua's sandbox."""
FAULTS = "its Lua has known faults (CVE-2025-49844, CVE-2024-46981), which any client of it can exploit"


@dataclass(frozen=True, order=True)
class Version:
    """A server's version; `numbers` come first, so that the newer version is greater."""

    numbers: tuple[int, int, int]
    name: str = "redis"
    """`redis` or `valkey`."""

    @classmethod
    def of(cls, text: str, name: str = "redis") -> Self:
        """Parse a version such as `7.2.4`; parts that are not numbers count as 0."""
        numbers = [int(part) if part.isdecimal() and len(part) < 5 else 0 for part in text.split(".")[:3]]
        major, minor, patch = [*numbers, 0, 0, 0][:3]
        return cls((major, minor, patch), name if name in _PATCHED else "redis")

    @property
    def has_known_faults(self) -> bool:
        """Whether this version has known faults; a distribution may have patched them without a new number."""
        major, minor, patch = self.numbers
        patched = _PATCHED[self.name]
        if (major, minor) in patched:
            return patch < patched[major, minor]
        return (major, minor) < max(patched)

    def __str__(self) -> str:
        return f"{self.name.capitalize()} {'.'.join(map(str, self.numbers))}"


def of_program(path: Path) -> Version:
    """Return the version of this program; 0.0.0 if it prints none."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    return _version_of(path, changed)


@lru_cache(maxsize=8)
def _version_of(path: Path, changed: int) -> Version:  # noqa: ARG001  # a replaced program is run again
    try:
        done = subprocess.run(  # noqa: S603  # a server that would be started anyway
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return Version((0, 0, 0))
    match = _VERSION.search(done.stdout)
    if match is None:
        return Version((0, 0, 0))
    name, *numbers = match.groups()
    return Version((int(numbers[0]), int(numbers[1]), int(numbers[2])), name.lower())
