"""Results of `penstock convert` besides Markdown: blocks with their boxes, and pictures."""

import json
from pathlib import Path

import pypdfium2 as pdfium
import pytest
from PIL import Image

from tests.support.cli import Cli, new_pdf
from tests.support.provider_server import ProviderServer
from tests.support.samples import picture_of


@pytest.fixture
def illustrated(cli: Cli) -> Path:
    """Two pages of text; the second has a picture below it."""
    path = new_pdf(cli.cwd / "annual report.pdf", 2)
    with pdfium.PdfDocument(path) as document:
        page, image = document[1], pdfium.PdfImage.new(document)
        image.set_bitmap(pdfium.PdfBitmap.from_pil(picture_of(["A picture"], (400, 200))))
        image.set_matrix(pdfium.PdfMatrix().scale(300, 150).translate(72, 300))
        page.insert_obj(image)
        page.gen_content()
        document.save(cli.cwd / "with picture.pdf")
    return cli.cwd / "with picture.pdf"


def test_blocks_come_with_their_boxes(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", 2)
    assert cli.run("convert", "report.pdf", "--format", "json").code == 0
    assert not (cli.cwd / "report.md").exists()
    assert (cli.cwd / "report.manifest.json").is_file()
    shown = cli.run("documents", "text", cli.newest(), "--format", "json").json()
    printed = cli.run("convert", "report.pdf", "--format", "json", "-o", "-").json()
    assert shown == printed
    assert [page["page"] for page in shown["pages"]] == [1, 2]
    second = shown["pages"][1]
    assert (second["unit"], second["width"] > 100) == ("pt", True)
    for block in second["blocks"]:
        left, top, right, bottom = block["bbox"]
        assert 0 <= left < right <= second["width"]
        assert 0 <= top < bottom <= second["height"]
    assert "This is page 2" in " ".join(block["text"] for block in second["blocks"])


def test_pages_of_a_model_are_one_block_each(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "report.pdf")
    assert cli.run("convert", "report.pdf", "--provider", "ai", "--format", "json").code == 0
    (page,) = cli.run("documents", "text", cli.newest(), "--format", "json").json()["pages"]
    assert [(block["type"], block["bbox"]) for block in page["blocks"]] == [("markdown", None)]
    assert len(provider.records) == 1


def test_pictures_are_kept_beside_the_markdown_that_links_to_them(cli: Cli, illustrated: Path) -> None:
    assert cli.run("convert", illustrated.name, "--pictures").code == 0
    text = (cli.cwd / "with picture.md").read_text()
    assert "![](with%20picture.pictures/page-0002-1.png)" in text
    with Image.open(cli.cwd / "with picture.pictures" / "page-0002-1.png") as picture:
        assert picture.width > picture.height > 100
    assert cli.run("documents", "export", cli.newest(), "copy.md").code == 0
    assert "![](copy.pictures/page-0002-1.png)" in (cli.cwd / "copy.md").read_text()
    assert (cli.cwd / "copy.pictures" / "page-0002-1.png").is_file()


def test_pictures_are_stored_only_on_request(cli: Cli, illustrated: Path) -> None:
    assert cli.run("convert", illustrated.name).code == 0
    assert "![]" not in (cli.cwd / "with picture.md").read_text()
    assert not (cli.cwd / "with picture.pictures").exists()


def test_models_give_no_pictures(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "report.pdf")
    refused = cli.run("convert", "report.pdf", "--provider", "ai", "--pictures")
    assert refused.code == 1
    assert "only the provider local" in refused.err
    assert not provider.records


def test_blocks_come_as_a_docling_document(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", 2)
    assert cli.run("convert", "report.pdf", "--format", "docling").code == 0
    document = json.loads((cli.cwd / "report.docling.json").read_text())
    assert document == cli.run("documents", "text", cli.newest(), "--format", "docling").json()
    assert (document["schema_name"], document["name"], sorted(document["pages"])) == (
        "DoclingDocument",
        "report",
        ["1", "2"],
    )
    assert "This is page 2" in " ".join(text["text"] for text in document["texts"] if text["prov"][0]["page_no"] == 2)
    assert (cli.cwd / "report.docling.manifest.json").is_file()
