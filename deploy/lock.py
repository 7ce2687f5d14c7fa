"""Renew requirements.lock and requirements-dev.lock: the versions of constraints.txt, with the hashes of their files.

`make lock` runs it, with uv. The second file holds what development needs beyond the first.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNTIME = ("embedded",)
DEVELOPMENT = ("bench", "dev", "folder")
_ENTRY = re.compile(r"^(?P<pin>\S+)(?P<marker>[^\\]*)\\\n(?P<hashes>(?:    --hash=.+\n)+)", re.MULTILINE)
_PIN = re.compile(r"^[\w.-]+==\S+", re.MULTILINE)
_EVERYWHERE = "(sys_platform == 'darwin' or sys_platform == 'linux')"
_TESTED = "python_full_version < '3.15'"


def main(uv: str) -> None:
    runtime = _entries(uv, RUNTIME)
    everything = _entries(uv, (*RUNTIME, *DEVELOPMENT))
    (ROOT / "requirements.lock").write_text("".join(runtime.values()), encoding="utf-8")
    beyond = [text for pin, text in everything.items() if pin not in runtime]
    (ROOT / "requirements-dev.lock").write_text("".join(beyond), encoding="utf-8")


def _entries(uv: str, extras: Sequence[str]) -> dict[str, str]:
    """What pip reads of each package that these extras need, by its name and version."""
    wanted = [f"--extra={extra}" for extra in extras]
    command = [
        uv, "pip", "compile", "pyproject.toml", "--constraints", "constraints.txt", "--universal", "--python-version",
        "3.11", "--generate-hashes", "--no-annotate", "--no-header", "--quiet", *wanted,
    ]  # fmt: skip
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603
    entries = {
        match["pin"]: f"{match['pin']}{_marker(match['marker'])} \\\n{match['hashes']}"
        for match in _ENTRY.finditer(found)
    }
    if not entries or set(entries) != set(_PIN.findall(found)):
        raise SystemExit("what uv says is not understood")
    return entries


def _marker(text: str) -> str:
    """The marker without what holds wherever Penstock runs. A Python that is too new is told so by pip."""
    parts = [part for part in text.strip("; ").split(" and ") if part not in {_EVERYWHERE, _TESTED}]
    return f" ; {' and '.join(parts)}" if any(parts) else ""


if __name__ == "__main__":
    main(sys.argv[1])
