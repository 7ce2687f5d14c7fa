"""Haystack's converter for docling-serve."""

import json
from pathlib import Path

import pytest
from conftest import Server
from docling_core.types.doc import DoclingDocument
from haystack.dataclasses import ByteStream
from haystack.utils import Secret
from haystack_integrations.components.converters.docling_serve import ConversionMode, DoclingServeConverter, ExportType


def converter(server: Server, export_type: ExportType, mode: ConversionMode, **more: object) -> DoclingServeConverter:
    return DoclingServeConverter(
        base_url=server.url,
        export_type=export_type,
        mode=mode,
        api_key=Secret.from_token(server.key),
        poll_interval=0.5,
        **more,
    )


@pytest.mark.parametrize("mode", ConversionMode)
@pytest.mark.parametrize("export_type", ExportType)
def test_the_converter_returns_documents(
    server: Server, pdf: Path, export_type: ExportType, mode: ConversionMode
) -> None:
    (document,) = converter(server, export_type, mode).run(sources=[pdf], meta={"from": "test"})["documents"]
    text = document.content
    if export_type is ExportType.JSON:
        parsed = DoclingDocument.model_validate(json.loads(text))
        assert len(parsed.pages) == 3
        text = parsed.export_to_markdown()
    assert "Reading one page with a model takes seconds" in text
    assert document.meta == {"from": "test"}


def test_options_reach_the_conversion(server: Server, pdf: Path) -> None:
    options = {"page_range": [1, 1], "do_ocr": True, "ocr_engine": "tesseract", "table_mode": "fast"}
    component = converter(server, ExportType.TEXT, ConversionMode.SYNC, convert_options=options)
    source = ByteStream(pdf.read_bytes(), meta={"file_name": "about.pdf"}, mime_type="application/pdf")
    (document,) = component.run(sources=[source])["documents"]
    assert "1. The task" in document.content
    assert "5. The states" not in document.content
