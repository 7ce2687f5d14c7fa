"""Edit the TOML file with settings in place, keeping its comments, readable only by its user."""

import copy
import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.settings.names import PREFIX

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_VALUE = (
    r"""(?P<value>"(?:[^"\\]|\\.)*+"|'[^']*+'|(?:[^#"'\s]++|[^\S\r\n]++(?=[^#"'\s]))*+)"""
    r"(?P<after>[^\S\r\n]*+(?:#[^\r\n]*+)?+)"
)
_PRIVATE = 0o600

Change = tuple[Sequence[str], Mapping[str, str | float]]
"""The path of a table, and new values of its keys."""


class UneditableFileError(Exception):
    """This process cannot change the file, or not safely in the form in which it is written."""


def change(path: Path, changes: Sequence[Change]) -> None:
    """Set keys in tables of the file, in one step; everything else in it stays, comments included.

    Afterwards only its user can read it. Raises `UneditableFileError`, and leaves the file unchanged.
    """
    path = path.resolve()  # keep a link a link
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(path.parent):
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            _replace(path, changed(text, changes))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, not TOML
        reason = error.strerror if isinstance(error, OSError) else "it is not valid TOML"
        raise UneditableFileError(f"{path} cannot be changed ({reason}): edit it by hand") from error


def changed(text: str, changes: Sequence[Change]) -> str:
    """Return the text of a TOML file with these keys set. Raises `UneditableFileError` if anything else would change
    too, and `TOMLDecodeError` for invalid TOML."""
    wanted, edited = copy.deepcopy(tomllib.loads(text)), text
    for path, values in changes:
        table: Any = wanted
        for name in path:
            table = table.setdefault(name, {})
        table.update(values)
        edited = _with_table(edited, path, values)
    try:
        is_exact = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        is_exact = False
    if not is_exact:
        tables = ", ".join(f"[{_dotted(path)}]" for path, _ in changes)
        raise UneditableFileError(f"the file sets {tables} in a form that Penstock cannot edit: edit it by hand")
    return edited


def variables_of_provider(name: str) -> list[str]:
    """Return the environment variables that set any field of this provider, or all providers as JSON. They override the
    file."""
    whole, own = f"{PREFIX}PROVIDERS", f"{PREFIX}PROVIDERS__{name}".upper()
    return sorted(
        variable
        for variable in os.environ
        if variable.upper() in {whole, own} or variable.upper().startswith(f"{own}__")
    )


def _with_table(text: str, path: Sequence[str], values: Mapping[str, str | float]) -> str:
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    begin = next((number for number in headers if _path_of(lines[number]) == list(path)), None)
    if begin is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        added = "".join(f"{name} = {_written(value)}\n" for name, value in values.items())
        return f"{text}{gap}[{_dotted(path)}]\n{added}"
    end = next((number for number in headers if number > begin), len(lines))
    section = lines[begin:end]
    for name, value in values.items():
        _set(section, name, _written(value))
    return "".join([*lines[:begin], *section, *lines[end:]])


def _set(section: list[str], name: str, value: str) -> None:
    """Replace the key's value in these lines, or add the key after the last of them."""
    pattern = re.compile(rf"(?P<before>\s*+{re.escape(name)}\s*+=[^\S\r\n]*+){_VALUE}(?P<end>\r?\n)?")
    for number, line in enumerate(section):
        if match := pattern.fullmatch(line):
            section[number] = f"{match['before']}{value}{match['after']}{match['end'] or ''}"
            return
    last = max(number for number, line in enumerate(section) if line.strip() and not line.lstrip().startswith("#"))
    if not section[last].endswith("\n"):
        section[last] += "\n"
    section.insert(last + 1, f"{name} = {value}\n")


def _path_of(line: str) -> list[str]:
    """Return the path of the table whose header this line is; empty for other lines."""
    try:
        table: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return []
    path = []
    while isinstance(table, dict) and table:
        [(name, table)] = table.items()
        path.append(name)
    return path


def _dotted(path: Sequence[str]) -> str:
    return ".".join(name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in path)


def _written(value: str | float) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder, so that only one process at a time changes a file in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            os.fchmod(file.fileno(), _PRIVATE)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
