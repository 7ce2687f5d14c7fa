"""The Docling project's own client, with the Docling project's own model of a document."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import Server
from docling.datamodel.base_models import ConversionStatus, OutputFormat
from docling.datamodel.service.options import ConvertDocumentsOptions
from docling.datamodel.service.targets import InBodyTarget, ZipTarget
from docling.service_client import ChunkerKind, DoclingServiceClient
from docling.service_client.exceptions import ServiceError, TaskNotFoundError
from docling_core.transforms.chunker.hierarchical_chunker import HierarchicalChunker
from docling_core.types.doc import BoundingBox, CoordOrigin, DocItemLabel, DoclingDocument
from docling_core.types.io import DocumentStream


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[DoclingServiceClient]:
    with DoclingServiceClient(server.url, api_key=server.key, poll_server_wait=1) as docling_client:
        yield docling_client


@pytest.fixture(scope="module")
def document(client: DoclingServiceClient, pdf: Path) -> DoclingDocument:
    result = client.convert(pdf)
    assert result.status is ConversionStatus.SUCCESS
    assert not result.errors
    return result.document


def test_the_server_is_alive(client: DoclingServiceClient) -> None:
    assert client.health().status == "ok"
    assert "penstock" in client.version()


def test_text_keeps_its_order_and_headings(document: DoclingDocument) -> None:
    markdown = document.export_to_markdown()
    assert markdown.startswith("# About Penstock\n")
    parts = [
        "## 1. The task",
        "Reading one page with a model takes seconds",
        "## 2. Rows, not messages",
        "## 5. The states",
    ]
    places = [markdown.index(part) for part in parts]
    assert places == sorted(places)
    assert document.name == "about-penstock"
    assert document.origin is not None
    assert (document.origin.filename, document.origin.mimetype) == ("about-penstock.pdf", "application/pdf")


def test_pages_have_sizes_and_texts_have_places_on_them(document: DoclingDocument) -> None:
    assert sorted(document.pages) == [1, 2, 3]
    assert document.pages[1].size.height == pytest.approx(841.9)
    title, *_ = (text for text in document.texts if text.label is DocItemLabel.TITLE)
    (prov,) = title.prov
    assert (prov.page_no, prov.bbox.coord_origin) == (1, CoordOrigin.TOPLEFT)
    page = BoundingBox(l=0, t=0, r=595.3, b=841.9, coord_origin=CoordOrigin.TOPLEFT)
    for text in document.texts:
        assert text.prov[0].bbox.intersection_over_self(page) == pytest.approx(1)
    # The third page is a picture of text.
    assert any(text.prov[0].page_no == 3 for text in document.texts)


def test_tables_have_their_cells(document: DoclingDocument) -> None:
    frame = document.tables[0].export_to_dataframe(document)
    assert list(frame.columns)[:2] == ["State", "Code"]
    assert "COMPLETED" in set(frame["State"])


def test_lists_are_lists(document: DoclingDocument) -> None:
    assert any(text.label is DocItemLabel.LIST_ITEM for text in document.texts)


def test_a_document_can_be_chunked_and_exported(document: DoclingDocument) -> None:
    chunks = list(HierarchicalChunker().chunk(document))
    assert any(chunk.meta.headings == ["About Penstock", "1. The task"] for chunk in chunks)
    assert document.export_to_doctags().startswith("<doctag>")
    assert DoclingDocument.model_validate(document.export_to_dict()) == document


def test_other_formats_equal_docling_s_own_exports(client: DoclingServiceClient, pdf: Path) -> None:
    options = ConvertDocumentsOptions(
        to_formats=[
            OutputFormat.MARKDOWN,
            OutputFormat.TEXT,
            OutputFormat.HTML,
            OutputFormat.DOCTAGS,
            OutputFormat.JSON,
        ]
    )
    (((_, converted),)) = client.submit_and_retrieve_each([_item(pdf, options)])
    document = converted.document.json_content
    tags = converted.document.doctags_content
    assert tags.replace("\n", "") == document.export_to_doctags().replace("\n", "")
    assert "<h2>1. The task</h2>" in converted.document.html_content
    assert "Reading one page with a model takes seconds." in converted.document.text_content
    assert converted.document.md_content.startswith("# About Penstock\n")


def test_range_of_pages_counts_as_in_the_source(client: DoclingServiceClient, pdf: Path) -> None:
    document = client.convert(pdf, page_range=(2, 9)).document
    assert sorted(document.pages) == [2, 3]
    assert {text.prov[0].page_no for text in document.texts} == {2, 3}


def test_several_files_and_streams(client: DoclingServiceClient, pdf: Path) -> None:
    stream = DocumentStream(name="copy.pdf", stream=io.BytesIO(pdf.read_bytes()))
    results = list(client.convert_all([pdf, stream]))
    assert [result.status for result in results] == [ConversionStatus.SUCCESS] * 2
    assert all("1. The task" in result.document.export_to_markdown() for result in results)


def test_zip_of_results(client: DoclingServiceClient, pdf: Path) -> None:
    options = ConvertDocumentsOptions(to_formats=[OutputFormat.MARKDOWN, OutputFormat.TEXT])
    zipped = client.submit(pdf, options=options, target=ZipTarget()).result(timeout=120)
    with zipfile.ZipFile(io.BytesIO(zipped.content)) as archive:
        assert sorted(archive.namelist()) == ["about-penstock.md", "about-penstock.txt"]
        assert archive.read("about-penstock.md").startswith(b"# About Penstock")


@pytest.mark.parametrize("chunker", ["hybrid", "hierarchical"])
def test_a_document_comes_in_chunks(client: DoclingServiceClient, pdf: Path, chunker: str) -> None:
    result = client.chunk(pdf, ChunkerKind(chunker))
    assert not any(document.errors for document in result.documents)
    assert [chunk.chunk_index for chunk in result.chunks] == list(range(len(result.chunks)))
    (first, *_) = (chunk for chunk in result.chunks if chunk.headings == ["About Penstock", "1. The task"])
    assert first.text.startswith("About Penstock\n1. The task\n")
    assert first.page_numbers == [1]
    assert {number for chunk in result.chunks for number in chunk.page_numbers} == {1, 2, 3}
    tokens = [chunk.num_tokens for chunk in result.chunks]
    assert max(tokens) <= 512 if chunker == "hybrid" else set(tokens) == {None}


def test_files_of_the_same_content_are_files_of_one_answer(server: Server, pdf: Path) -> None:
    files = [("files", (name, pdf.read_bytes(), "application/pdf")) for name in ("one.pdf", "two.pdf")]
    answer = httpx.post(f"{server.url}/v1/convert/file", files=files, headers={"X-Api-Key": server.key}, timeout=120)
    assert answer.headers["content-type"] == "application/zip"
    assert "converted_docs.zip" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert len({archive.read(name) for name in archive.namelist()}) == 1
        assert len(archive.namelist()) == 2


def test_a_document_beside_its_chunks_is_one_of_docling_s(server: Server, pdf: Path) -> None:
    answer = httpx.post(
        f"{server.url}/v1/chunk/hybrid/file",
        files=[("files", ("a.pdf", pdf.read_bytes(), "application/pdf"))],
        data={"include_converted_doc": "true"},
        headers={"X-Api-Key": server.key},
        timeout=120,
    )
    (beside,) = answer.json()["documents"]
    assert DoclingDocument.model_validate(beside["content"]["json_content"]).pages.keys() == {1, 2, 3}


def test_a_client_waits_on_the_websocket(server: Server, pdf: Path) -> None:
    with DoclingServiceClient(server.url, api_key=server.key, ws_fallback_to_poll=False) as client:
        job = client.submit(pdf, target=InBodyTarget())
        assert job.result(timeout=120).status is ConversionStatus.SUCCESS


def test_an_unconvertible_file_is_refused_with_the_reason(client: DoclingServiceClient) -> None:
    stream = DocumentStream(name="broken.pdf", stream=io.BytesIO(b"%PDF-1.7\nnot really"))
    with pytest.raises(ServiceError) as refused:
        client.convert(stream)
    assert refused.value.status_code == 422
    assert "broken.pdf" in str(refused.value.detail)


def test_unknown_task_and_wrong_key(client: DoclingServiceClient, server: Server, pdf: Path) -> None:
    job = client.submit(pdf)
    job.result(timeout=120)
    with pytest.raises(TaskNotFoundError):
        client._poll_task_status("0123456789abcdef", 0)  # the client has no public method for this
    with DoclingServiceClient(server.url, api_key="pstk_wrong") as stranger, pytest.raises(ServiceError) as refused:
        stranger.convert(pdf)
    assert refused.value.status_code == 401


def _item(pdf: Path, options: ConvertDocumentsOptions):
    from docling.service_client import ConversionItem

    return ConversionItem(source=pdf, options=options)
