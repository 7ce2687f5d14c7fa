"""A process's title: `ps`, psutil and `/proc` identify a process by the arguments of its start."""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

_FIRST_FIELD = 45
"""The field of `/proc/self/stat`, counted after the name, where the bounds of arguments and environment begin."""


def show(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Show these arguments and this environment to programs that inspect the process. Surplus text is cut off.

    No code in this process may still use the original ones.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end, env_begin, env_end = map(int, fields[_FIRST_FIELD : _FIRST_FIELD + 4])
    _write(begin, end, arguments)
    # Penstock's own variables come first.
    ordered = sorted(env.items(), key=lambda item: not item[0].startswith("PENSTOCK_"))
    _write(env_begin, env_end, [f"{name}={value}" for name, value in ordered])


def _write(begin: int, end: int, words: Sequence[str]) -> None:
    text = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)
