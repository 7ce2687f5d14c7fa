"""Penstock as users have it: installed from its wheel, or as a checkout, each in a virtual environment of its own.

Everything else comes from the environment that the tests run in, so that nothing is downloaded.
"""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "celeryconfig.py", "penstock_entry.py")


@dataclass(frozen=True)
class Installed:
    """A virtual environment with Penstock in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def penstock(self) -> Path:
        return self.folder / "bin" / "penstock"

    @property
    def packages(self) -> Path:
        """Where its own packages are."""
        return next(self.folder.glob("lib/python*/site-packages"))


def build_wheel(folder: Path) -> Path:
    """The wheel, made from a copy of the sources, so that nothing is left among them."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name in _SOURCES:
        shutil.copy(ROOT / name, sources)
    for name in ("pipeline", "tasks"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    _run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sources))
    return next(folder.glob("*.whl"))


def install_wheel(wheel: Path, folder: Path) -> Installed:
    """An environment with this wheel."""
    made = _environment(folder)
    pip = ("-m", "pip", "--python", str(made.python), "install")
    _run(*pip, "-q", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel))
    return made


def install_checkout(folder: Path) -> Installed:
    """An environment that imports this checkout, with the command as `pip install -e` writes it."""
    made = _environment(folder, ROOT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["penstock"].partition(":")
    lines = [
        f"#!{made.python}",
        "import re",
        "import sys",
        f"from {module} import {function}",
        f"sys.exit({function}())",
    ]
    made.penstock.write_text("\n".join([*lines, ""]), encoding="utf-8")
    made.penstock.chmod(0o755)
    return made


def _environment(folder: Path, *paths: Path) -> Installed:
    _run("-m", "venv", "--without-pip", str(folder))
    made = Installed(folder)
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (made.packages / "tests.pth").write_text("\n".join([*map(str, paths), *sorted(ours), ""]), encoding="utf-8")
    return made


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
