"""LangChain's loader for Docling, with Penstock as its converter."""

from pathlib import Path

from conftest import Server
from docling.service_client import DoclingServiceClient
from docling_core.transforms.chunker.hierarchical_chunker import HierarchicalChunker
from langchain_docling import DoclingLoader
from langchain_docling.loader import ExportType


def test_markdown_and_chunks_with_their_pages(server: Server, pdf: Path) -> None:
    with DoclingServiceClient(server.url, api_key=server.key, poll_server_wait=1) as client:
        (whole,) = DoclingLoader(str(pdf), converter=client, export_type=ExportType.MARKDOWN).load()
        chunks = DoclingLoader(str(pdf), converter=client, chunker=HierarchicalChunker()).load()
    assert "## 1. The task" in whole.page_content
    assert whole.metadata == {"source": str(pdf)}
    (passage,) = (chunk for chunk in chunks if "Reading one page with a model takes seconds" in chunk.page_content)
    meta = passage.metadata["dl_meta"]
    assert meta["headings"] == ["About Penstock", "1. The task"]
    assert meta["doc_items"][0]["prov"][0]["page_no"] == 1
    assert any("COMPLETED" in chunk.page_content for chunk in chunks)
