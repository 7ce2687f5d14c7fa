"""Penstock as users install it: from its wheel, or as a checkout, each in its own virtual environment.

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
        """The folder of its own packages."""
        return next(self.folder.glob("lib/python*/site-packages"))


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, so that the build leaves no files among them."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name in _SOURCES:
        shutil.copy(ROOT / name, sources)
    for name in ("pipeline", "tasks"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    _run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(sources))
    return next(folder.glob("*.whl"))


def install_wheel(wheel: Path, folder: Path) -> Installed:
    """Create an environment with this wheel."""
    installed = _environment(folder)
    pip = ("-m", "pip", "--python", str(installed.python), "install")
    _run(*pip, "-q", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel))
    return installed


def install_checkout(folder: Path) -> Installed:
    """Create an environment that imports this checkout, with the command that `pip install -e` writes."""
    installed = _environment(folder, ROOT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["penstock"].partition(":")
    lines = [
        f"#!{installed.python}",
        "import re",
        "import sys",
        f"from {module} import {function}",
        f"sys.exit({function}())",
    ]
    installed.penstock.write_text("\n".join([*lines, ""]), encoding="utf-8")
    installed.penstock.chmod(0o755)
    return installed


def _environment(folder: Path, *paths: Path) -> Installed:
    _run("-m", "venv", "--without-pip", str(folder))
    installed = Installed(folder)
    site_packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (installed.packages / "tests.pth").write_text(
        "\n".join([*map(str, paths), *sorted(site_packages), ""]), encoding="utf-8"
    )
    return installed


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
