"""Folders with special files, prepared results, settings, and another user's acts."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.words import MARK

SECRET = "pass-word"


@dataclass(frozen=True)
class Trap:
    """An entry at a path; `make` gets the path, and a folder outside that Penstock must not touch."""

    name: str
    make: Callable[[Path, Path], object]


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path must be short
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


def _link(target: str) -> Callable[[Path, Path], object]:
    return lambda path, outside: path.symlink_to(target.format(outside=outside))


def _sparse(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.write(b"%PDF-1.4\n")
        file.truncate(2**40)


def _deep(path: Path, _: Path) -> None:
    path.mkdir()
    for _level in range(60):
        path /= "a" * 50
        os.mkdir(path)  # noqa: PTH102


def _text(text: str) -> Callable[[Path, Path], object]:
    return lambda path, _: path.write_text(text)


TRAPS = [
    Trap("a pipe", _fifo),
    Trap("a socket", _socket),
    Trap("a link to zeros", _link("/dev/zero")),
    Trap("a link to chance", _link("/dev/random")),
    Trap("a link to the terminal", _link("/dev/tty")),
    Trap("a link to a folder outside", _link("{outside}")),
    Trap("a link to nowhere", _link("/nonexistent/x")),
    Trap("a link to memory", _link("/proc/self/mem")),
    Trap("a folder", lambda path, _: path.mkdir()),
    Trap("a terabyte of nothing", _sparse),
]
"""Special files with names of inputs, such as `x.pdf`: a reader must neither block nor read without end."""

IN_FOLDERS = [
    Trap("a link to a file outside", lambda path, outside: path.symlink_to(outside / f"secret{path.suffix}")),
    Trap("a link to itself", lambda path, _: path.symlink_to(path.name)),
    Trap("a link to the folder it is in", lambda path, _: path.symlink_to(path.parent)),
    Trap("folders in folders", _deep),
]
"""Entries of folders that Penstock walks."""


def _manifest(text: str) -> Callable[[Path, Path], object]:
    return lambda path, _: path.with_suffix(".manifest.json").write_text(text)


def _beside(suffix: str, act: Callable[[Path, Path], object]) -> Callable[[Path, Path], object]:
    return lambda path, outside: act(path.with_suffix(suffix), outside)


PREPARED = [
    Trap("a result that leads out", _beside(".md", _link("{outside}/secret.md"))),
    Trap("a manifest that leads out", _beside(".manifest.json", _link("{outside}/secret.md"))),
    Trap("pictures that lead out", _beside(".pictures", _link("{outside}"))),
    Trap("a result that is a folder", _beside(".md", lambda path, _: path.mkdir())),
    Trap("a result that is a pipe", _beside(".md", _fifo)),
    Trap("a manifest that is a pipe", _beside(".manifest.json", _fifo)),
    Trap("a manifest without end", _beside(".manifest.json", _link("/dev/zero"))),
    Trap("a manifest of lists", _manifest("[" * 200_000)),
    Trap("a manifest of colours", _manifest(json.dumps({"source": MARK, "output": {"sha256": MARK}}))),
    Trap("a manifest of numbers", _manifest("9" * 5_000)),
    Trap("a manifest of paths", _manifest(json.dumps({"pictures": ["../../secret.md"], "output": "../secret.md"}))),
    Trap("pictures of somebody", _beside(".pictures", _text("mine"))),
]
"""Entries at the paths of a result, its manifest or its pictures."""

_LONG = "/" + "a" * 5_000

SETTINGS: dict[str, tuple[dict[str, str], str]] = {
    "a password in an address of Redis": (
        {"PENSTOCK_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:1/0"},
        "not reachable|Redis cannot be used",
    ),
    "a password in a wrong address of Redis": ({"PENSTOCK_REDIS_URL": f"redis//:{SECRET}@x"}, "PENSTOCK_REDIS_URL"),
    "a password in a database": (
        {"PENSTOCK_DATABASE_URL": f"postgresql://u:{SECRET}@127.0.0.1:1/x"},
        "database cannot be used",
    ),
    "a password in a wrong database": (
        {"PENSTOCK_DATABASE_URL": f"postgresql:/u:{SECRET}@[x"},
        "PENSTOCK_DATABASE_URL",
    ),
    "a password in a port": (
        {"PENSTOCK_DATABASE_URL": f"postgresql://u:{SECRET}@h:{SECRET}/x"},
        "PENSTOCK_DATABASE_URL",
    ),
    "a password in a provider": ({"PENSTOCK_PROVIDERS__X__BASE_URL": f"ftp://u:{SECRET}@h"}, "BASE_URL"),
    "a key that is a wrong setting": (
        {"PENSTOCK_PROVIDERS__X": f'{{"api_key": "{SECRET}", "model": 1}}'},
        "PENSTOCK_PROVIDERS",
    ),
    "a folder of colours": ({"PENSTOCK_DATA_DIR": f"/proc/{MARK}"}, "PENSTOCK_DATA_DIR"),
    "a folder without end": ({"PENSTOCK_DATA_DIR": _LONG}, "PENSTOCK_DATA_DIR"),
    "a folder that is a device": ({"PENSTOCK_DATA_DIR": "/dev/null"}, "PENSTOCK_DATA_DIR"),
    "settings without end": ({"PENSTOCK_CONFIG": "/dev/zero"}, "PENSTOCK_CONFIG|/dev/zero"),
    "settings of chance": ({"PENSTOCK_CONFIG": "/dev/urandom"}, "PENSTOCK_CONFIG|/dev/urandom"),
    "pages without end": ({"PENSTOCK_DOCUMENTS__MAX_PAGES": "9" * 5_000}, "PENSTOCK_DOCUMENTS__MAX_PAGES"),
    "a time of no number": ({"PENSTOCK_STACK_LINGER_S": "nan"}, "PENSTOCK_STACK_LINGER_S"),
    "a time without end": ({"PENSTOCK_STACK_LINGER_S": "1e400x"}, "PENSTOCK_STACK_LINGER_S"),
    "a setting of colours": ({"PENSTOCK_PROVIDER": MARK}, ""),
    "a name of colours": ({f"PENSTOCK_{MARK}": "1"}, "PENSTOCK_"),
    "lists in lists": ({"PENSTOCK_SCREENSHOTS__EXCLUDED_APPS": "[" * 50_000}, "EXCLUDED_APPS"),
}
"""Variables, and a pattern for `penstock status`, which never shows the password."""

HARMLESS: dict[str, dict[str, str]] = {
    "modules of the folder": {"PYTHONPATH": ".", "PYTHONSTARTUP": "tasks.py", "PYTHONSAFEPATH": ""},
    "a narrow terminal": {"COLUMNS": "1", "LINES": "0", "TERM": "dumb"},
    "a terminal of minus five": {"COLUMNS": "-5", "TERM": MARK},
    "the C locale": {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    "a proxy": {
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5://127.0.0.1:9",
    },
    "Celery's own": {"CELERY_BROKER_URL": "redis://127.0.0.1:1", "CELERY_CONFIG_MODULE": "os", "CELERY_LOADER": "x"},
}
"""Variables of other programs, with which `penstock status` works."""

AS_ANOTHER_USER = {
    "list the data folder": "os.listdir(data)",
    "read the database": "open(data + '/penstock.db', 'rb').read(9)",
    "read the log": "open(data + '/penstock.log').read(9)",
    "read what is running": "open(data + '/stack.json').read(9)",
    "write into the data folder": "open(data + '/x', 'w')",
    "replace the data folder": "os.rename(data, data + '-x')",
    "connect to Redis": "connect(redis)",
    "read results": "open(next(filter(os.path.isfile, glob.glob(data + '/**', recursive=True)), data))",
}
"""Python expressions that must raise `OSError` in a process of another user. `data`: the data folder."""
