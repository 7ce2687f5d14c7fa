"""Open WebUI's three loaders for a user's own server."""

import shutil
import sys
from pathlib import Path

import pytest
from conftest import Server
from open_webui_loaders import Loaders, load

FOLDER = Path(sys.prefix) / "open-webui"


@pytest.fixture(scope="module")
def loaders() -> Loaders:
    return load(FOLDER)


@pytest.fixture
def paper(pdf: Path, tmp_path: Path) -> Path:
    """A file whose name needs encoding in a header."""
    return Path(shutil.copy(pdf, tmp_path / "Über Penstock.pdf"))


def test_docling_gives_a_text_for_each_page(loaders: Loaders, server: Server, paper: Path) -> None:
    pages = loaders.docling(server.url, server.key, str(paper), "application/pdf").load()
    assert [document.metadata["page"] for document in pages] == [0, 1, 2]
    assert pages[0].page_content.startswith("# About Penstock")
    assert "COMPLETED" in pages[1].page_content


def test_docling_with_options_of_the_administrator(loaders: Loaders, server: Server, paper: Path) -> None:
    params = {"do_ocr": True, "page_range": [2, 2], "ocr_lang": ["en", "de"], "pipeline": "standard"}
    (page,) = loaders.docling(server.url, server.key, str(paper), "application/pdf", params).load()
    assert "5. The states" in page.page_content


def test_docling_shows_why_a_file_is_refused(loaders: Loaders, server: Server, tmp_path: Path) -> None:
    (tmp_path / "empty.pdf").touch()
    with pytest.raises(Exception, match=r"empty\.pdf is empty"):
        loaders.docling(server.url, server.key, str(tmp_path / "empty.pdf"), "application/pdf").load()


def test_external_gives_a_text_for_each_page(loaders: Loaders, server: Server, paper: Path) -> None:
    pages = loaders.external(str(paper), server.url, server.key, "application/pdf").load()
    assert [document.metadata["page"] for document in pages] == [0, 1, 2]
    assert {document.metadata["source"] for document in pages} == {"Über Penstock.pdf"}
    assert "Reading one page with a model takes seconds" in pages[0].page_content


def test_mineru_gives_the_text(loaders: Loaders, server: Server, paper: Path) -> None:
    # The loader sends no key to a user's own server, so this works on this machine only.
    (page,) = loaders.mineru(str(paper), "local", server.url, params={"backend": "pipeline"}).load()
    assert "## 5. The states" in page.page_content
    assert page.metadata["backend"] == "penstock"


def test_wrong_key_is_refused(loaders: Loaders, server: Server, paper: Path) -> None:
    with pytest.raises(Exception, match="not valid"):
        loaders.docling(server.url, "pstk_wrong", str(paper), "application/pdf").load()
    with pytest.raises(Exception, match="401"):
        loaders.external(str(paper), server.url, "pstk_wrong", "application/pdf").load()
