"""Only child processes run code that decodes users' files."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DECODERS = {
    "Image.open",
    "images.open_picture",
    "images.load_picture",
    "pdfium.open_document",
    "fingerprint.read_frame",
    "fingerprint.load_image",
    "recognition.read",
    "recognition.recognise",
    "conversion.open_source",
    "conversion.survey",
    "survey.inspect",
    "audio_tags.tags_of",
    "extraction.extract_file",
    "extraction.extract_page",
    "mutagen.File",
    "sitemap.parse",
    "PdfDocument",
    "RapidOCR",
}
"""Decoding functions, as callers write them."""
CHILDREN = {
    f"pipeline/reading/{name}.py"
    for name in (
        "ocr/crops",
        "ocr/engine",
        "ocr/fingerprint",
        "ocr/images",
        "ocr/tasks",
        "pdf/conversion",
        "pdf/passwords",
        "pdf/pdfium",
        "pdf/searchable",
        "pdf/source_check",
        "pdf/tasks",
        "text/audio_tags",
        "text/extraction",
        "text/tasks",
        "web/tasks",
    )
}
"""The modules that a child process runs."""


def test_only_code_of_child_processes_decodes_files() -> None:
    paths = [path for folder in ("pipeline", "tasks") for path in (ROOT / folder).rglob("*.py")]
    callers = {str(path.relative_to(ROOT)) for path in paths for _ in _calls(path)}
    assert callers == CHILDREN


def _calls(path: Path) -> Iterator[str]:
    """Yield the decoders that a module calls, as attributes of their modules or as imported names."""
    text = path.read_text(encoding="utf-8")
    if not any(all(part in text for part in name.split(".")) for name in DECODERS):  # most modules need no parsing
        return
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    imported = {
        alias.asname or alias.name: f"{(node.module or '').rpartition('.')[2]}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in nodes:
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            called = imported.get(name, name)
            if called in DECODERS or called.rpartition(".")[2] in DECODERS:
                yield called
