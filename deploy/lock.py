"""Renew the locks: the versions of constraints.txt, with the hashes of their files.

`make lock` runs it. requirements-dev.lock holds what development needs beyond requirements.lock; requirements-uv.lock
holds uv, which installs both, and which makes the locks.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from install import UV, get_uv

ROOT = Path(__file__).parent.parent
RUNTIME = ("embedded",)
DEVELOPMENT = ("bench", "dev", "folder")
_ENTRY = re.compile(r"^(?P<pin>\S+)(?P<marker>[^\\]*)\\\n(?P<hashes>(?:    --hash=.+\n)+)", re.MULTILINE)
_PIN = re.compile(r"^[\w.-]+==\S+", re.MULTILINE)
_EVERYWHERE = "(sys_platform == 'darwin' or sys_platform == 'linux')"
_TESTED = "python_full_version < '3.15'"


def main() -> None:
    if not get_uv():
        sys.exit("the locks are made with uv, which pip cannot install here")
    runtime = _entries("pyproject.toml", *_extras(RUNTIME))
    everything = _entries("pyproject.toml", *_extras((*RUNTIME, *DEVELOPMENT)))
    (ROOT / "requirements.lock").write_text("".join(runtime.values()), encoding="utf-8")
    beyond = [text for pin, text in everything.items() if pin not in runtime]
    (ROOT / "requirements-dev.lock").write_text("".join(beyond), encoding="utf-8")
    installer = _entries("-", stdin="uv")
    (ROOT / "requirements-uv.lock").write_text("".join(installer.values()), encoding="utf-8")


def _extras(names: Sequence[str]) -> list[str]:
    return [f"--extra={name}" for name in names]


def _entries(*sources: str, stdin: str = "") -> dict[str, str]:
    """Return the lock entry of each package that the sources need, by its pin. `stdin` is uv's standard input."""
    command = [
        *UV,
        "pip",
        "compile",
        *sources,
        "--constraints",
        "constraints.txt",
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "--quiet",
    ]
    requirements = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, input=stdin).stdout  # noqa: S603
    entries = {
        match["pin"]: f"{match['pin']}{_marker(match['marker'])} \\\n{match['hashes']}"
        for match in _ENTRY.finditer(requirements)
    }
    if not entries or set(entries) != set(_PIN.findall(requirements)):
        raise SystemExit("the output of uv has an unknown format")
    return entries


def _marker(text: str) -> str:
    """Return the marker without conditions that hold wherever Penstock runs. pip itself rejects a newer Python."""
    parts = [part for part in text.strip("; ").split(" and ") if part not in {_EVERYWHERE, _TESTED}]
    return f" ; {' and '.join(parts)}" if any(parts) else ""


if __name__ == "__main__":
    main()
