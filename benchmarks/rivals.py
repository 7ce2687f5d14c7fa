"""Other converters, each in an environment and a process of its own: none of them is a dependency of Penstock.

pip installs each rival on first use in `.unseen/rivals/NAME-VERSION` (or in PENSTOCK_UNSEEN). Its results are kept
there by the document's hash, since they change only with its version, and so are those of markitdown, which runs in
Penstock's environment. Speed is always measured. Delete the folder to convert again.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pypdfium2

from benchmarks import unseen
from benchmarks.support import ROOT

VERSIONS = {"pdf-inspector": "1.25.2", "pymupdf4llm": "1.28.2", "liteparse": "2.18.0", "xberg": "1.3.9"}
"""pymupdf4llm has the AGPL: it is only measured here."""

RATE_PAGES = {"pymupdf4llm": 10}
"""The pages whose speed is measured, if not all, of a rival that needs most of a second a page."""

_LIMIT_S = 300.0
_INHERITED = ("PATH", "LANG", "LC_ALL", "TESSDATA_PREFIX")


def is_installed(name: str) -> bool:
    return (_folder(name) / "lib").is_dir()


def install(name: str) -> None:
    """Install the rival unless it is there. Raises `BenchmarkError` with the reason."""
    if is_installed(name):
        return
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{uuid4().hex}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        unseen.run([*pip, "--only-binary", ":all:", "--target", str(partial), f"{name}=={VERSIONS[name]}"], folder)
        partial.rename(folder / "lib")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def convert(name: str, source: Path, numbers: Iterable[int]) -> dict[int, str]:
    """Return the Markdown of these pages, from earlier runs if possible. Raises `BenchmarkError` if the rival fails."""
    return keep(
        f"{name}-{VERSIONS[name]}",
        lambda source, missing: dict(_run(name, source, list(map(str, missing)))),
        source,
        numbers,
    )


def keep(
    rival: str, convert: Callable[[Path, list[int]], dict[int, str]], source: Path, numbers: Iterable[int]
) -> dict[int, str]:
    """Return the Markdown of these pages from earlier runs of `rival`, its name and version; convert the others."""
    wanted = list(numbers)
    kept = unseen.KEPT / "rivals" / rival / "results" / f"{unseen.digest(source)}.json"
    texts = dict(json.loads(kept.read_text("utf-8"))) if kept.is_file() else {}
    if missing := [number for number in wanted if number not in texts]:
        texts |= convert(source, missing)
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(uuid4().hex)
        partial.write_text(json.dumps(sorted(texts.items())), "utf-8")
        partial.replace(kept)
    return {number: texts[number] for number in wanted if number in texts}


def pages_per_s(name: str, source: Path, pages: range) -> float:
    """Return the rival's speed on one core on these pages of a PDF. Raises `BenchmarkError` if the rival fails."""
    chosen = pages[: RATE_PAGES.get(name, len(pages))]
    with tempfile.TemporaryDirectory(prefix="rival-") as folder, pypdfium2.PdfDocument(source) as document:
        part = Path(folder, "pages.pdf")
        with pypdfium2.PdfDocument.new() as extract:
            extract.import_pages(document, [number - 1 for number in chosen])
            extract.save(part)
        return float(_run(name, part, ["--rate"]))


def _run(name: str, source: Path, arguments: Sequence[str]) -> Any:
    """Return the result of the child program. `-S` hides the packages of Penstock's environment from the rival."""
    with tempfile.TemporaryDirectory(prefix="rival-") as home:
        output = Path(home, "output.json")
        command = [sys.executable, "-S", "-m", "benchmarks.rival_child", name, str(source), str(output), *arguments]
        environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        environment |= {"HOME": home, "PYTHONPATH": str(_folder(name) / "lib")}
        unseen.run(command, ROOT, environment=environment, limit_s=_LIMIT_S)
        return json.loads(output.read_text("utf-8"))


def _folder(name: str) -> Path:
    return unseen.KEPT / "rivals" / f"{name}-{VERSIONS[name]}"
