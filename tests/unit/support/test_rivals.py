"""Rivals run in environments of their own, and their Markdown is kept."""

import pytest

from benchmarks import rivals, unseen
from benchmarks.support import BenchmarkError

NAME = "pdf-inspector"

LIBRARY = """
import sys
from types import SimpleNamespace as Object

def extract_pages_markdown(pdf, pages):
    if not pages:
        raise ValueError("no pages")
    print("words that are no JSON", sys.path)
    return Object(pages=[Object(page=page, markdown=f"page {page}") for page in pages])
"""


@pytest.fixture
def rival(tmp_path, monkeypatch):
    """Prepare an installed rival whose library is a few lines."""
    monkeypatch.setattr(unseen, "KEPT", tmp_path / "kept")
    library = rivals._folder(NAME) / "lib" / "pdf_inspector.py"
    library.parent.mkdir(parents=True)
    library.write_text(LIBRARY)
    source = tmp_path / "a.pdf"
    source.write_bytes(b"%PDF")
    return library, source


def test_each_page_of_a_document_is_converted_once(rival):
    library, source = rival
    assert rivals.convert(NAME, source, [1, 3]) == {1: "page 0", 3: "page 2"}
    assert rivals.convert(NAME, source, [2]) == {2: "page 1"}
    library.write_text("raise SystemExit(1)")
    assert rivals.convert(NAME, source, [1, 2, 3]) == {1: "page 0", 2: "page 1", 3: "page 2"}
    source.write_bytes(b"%PDF changed")
    with pytest.raises(BenchmarkError, match="status 1"):
        rivals.convert(NAME, source, [1])


def test_a_failure_is_named_and_a_hang_ends(rival, monkeypatch):
    library, source = rival
    library.write_text("import os\n\ndef extract_pages_markdown(pdf, pages):\n    os.abort()\n")
    with pytest.raises(BenchmarkError, match=r"Aborted|status -6"):
        rivals.convert(NAME, source, [1])
    library.write_text("while True:\n    pass\n")
    monkeypatch.setattr(rivals, "_LIMIT_S", 0.5)
    with pytest.raises(BenchmarkError, match="timed out"):
        rivals.convert(NAME, source, [1])


def test_a_rival_sees_no_package_of_penstock(rival):
    library, source = rival
    library.write_text("import psutil\n")
    with pytest.raises(BenchmarkError, match="No module named 'psutil'"):
        rivals.convert(NAME, source, [1])
