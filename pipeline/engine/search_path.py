"""The module search path of our processes, without the current folder.

`PYTHONPATH` often adds that folder by accident: an empty entry, as in
`PYTHONPATH=$PYTHONPATH:/opt/lib`, is the current folder. Imports nothing but `os` and `sys`, since the command cleans
the path with this before it imports anything else.
"""

import os
import sys

NAMES = ("pipeline", "tasks", "celeryconfig")
"""The names of Penstock's top-level modules."""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
"""The folder from which Python imports Penstock."""
_PLAIN = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")


def clean() -> None:
    """Remove stray entries (`is_stray`) from this process's path, and make sure that it can import Penstock."""
    sys.path[:] = [entry for entry in sys.path if not is_stray(entry)]
    if not any(map(_is_root, sys.path)) and ROOT not in _installed():
        sys.path.insert(0, ROOT)


def program(module: str, *arguments: str) -> list[str]:
    """Return the command line, for a subprocess, that runs one of our modules; use it with `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return all environment variables for a child process, with `PYTHONSAFEPATH` set, and `PYTHONPATH` changed so that
    it imports the same Penstock and no stray module."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    safe_entries = [entry for entry in entries if not _is_root(entry) and not is_stray(entry)]
    wanted = safe_entries if ROOT in _installed() else [ROOT, *safe_entries]
    # For Pythons that the child starts, such as a worker that detaches itself.
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}
    return others | ({"PYTHONPATH": os.pathsep.join(wanted)} if wanted else {})


def environment_without_keys() -> dict[str, str]:
    """Return the variables of `environment` that programs need to start, and no others: they may hold keys."""
    return {name: value for name, value in environment().items() if name in _PLAIN}


def is_stray(entry: str) -> bool:
    """Whether an entry is relative, is the current folder, or hides Penstock behind a module of the same name."""
    if not os.path.isabs(entry):  # noqa: PTH117  # this module must not import pathlib
        return True
    if _is_root(entry) or entry in _installed():
        return False
    return _is_here(entry) or any(map(os.path.exists, _modules(entry)))


def _modules(entry: str) -> list[str]:
    files = [name for module in NAMES for name in (f"{module}.py", f"{module}/__init__.py")]
    return [f"{entry}/{name}" for name in files]


def _is_root(entry: str) -> bool:
    return os.path.realpath(entry) == os.path.realpath(ROOT) if entry else False


def _is_here(entry: str) -> bool:
    try:
        return os.path.realpath(entry) == os.getcwd()  # noqa: PTH109
    except OSError:  # the current folder was removed
        return False


def _installed() -> set[str]:
    """The folders of Python and of installed packages. Python imports `site` before any program."""
    site = sys.modules.get("site")
    folders = {os.path.dirname(os.__file__)}  # noqa: PTH120
    if site is not None:
        folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return folders
