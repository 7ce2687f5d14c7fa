"""The time of `make setup` in a new clone, by uv and by pip, with empty download caches."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.suite import Figures
from benchmarks.support import ROOT, BenchmarkError, new_folder, progress

FALLBACK = "pip installs the packages"
"""The message of `make setup` if uv does not work."""
EMPTY_CACHES = {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1"}


def measure() -> Figures:
    """Measure setup_uv_s and setup_pip_s, once each: the network takes most of the time."""
    return {"setup_uv_s": _setup_s("uv"), "setup_pip_s": _setup_s("pip")}


def _setup_s(installer: str) -> float:
    folder = new_folder(f"clone-{installer}")
    _copy_tree(folder)
    progress(f"make setup by {installer}")
    started = time.monotonic()
    ended = subprocess.run(
        ["make", "setup", f"PYTHON={_outer_python()}", f"INSTALLER={installer}"],
        cwd=folder,
        env={**os.environ, **EMPTY_CACHES},
        check=False,
        capture_output=True,
        text=True,
    )
    took_s = time.monotonic() - started
    output = ended.stdout + ended.stderr
    if ended.returncode != 0 or (installer == "uv" and FALLBACK in output):
        raise BenchmarkError(f"make setup by {installer} failed: {output[-1000:]}")
    shutil.rmtree(folder)
    return round(took_s, 1)


def _copy_tree(folder: Path) -> None:
    """Copy the files that git tracks, in their present state."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)


def _outer_python() -> str:
    """Return the Python that created this environment."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
