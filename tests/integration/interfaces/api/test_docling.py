"""docling-serve's API in every state of a document. `make clients` tests it with the real clients."""

import base64
import io
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from pipeline.flows.documents.files import output_folder
from pipeline.flows.documents.models import DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.webhooks.models import ENDPOINTS
from pipeline.flows.webhooks.rules.callback import Callback
from pipeline.interfaces.http.long_poll import WAITS
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support.cli import new_pdf
from tests.support.documents import insert_document, write_output
from tests.support.waiting import wait_until

DONE, FAILED = PageStatus.COMPLETED, PageStatus.FAILED


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__MAX_SYNC_WAIT_S": "0.2"}


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    return new_pdf(tmp_path / "report.pdf", 2)


def test_the_files_of_an_archive_are_documents_of_one_task(api: TestClient, tmp_path: Path, pdf: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pile.zip", "w") as written:
        written.write(pdf, "2026/report.pdf")
        written.write(new_pdf(tmp_path / "other.pdf", 1), "other.pdf")
        written.writestr("program.exe", b"MZ" + bytes(50))
    sent = upload(api, "/v1/convert/file/async", tmp_path / "pile.zip", pdf)
    assert sent.status_code == 200, sent.text
    ids = sent.json()["task_id"].split("-")[0].split(".")
    assert (len(ids), len(set(ids))) == (3, 2), "the same file is the same document"
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as written:
        for number in range(21):
            written.writestr(f"{number}.md", f"# {number}")
    assert "21 files" in upload(api, "/v1/convert/file", tmp_path / "many.zip").json()["detail"]


def upload(api: TestClient, path: str, *files: Path, **fields: Any) -> Any:
    return api.post(
        path, files=[("files", (file.name, file.read_bytes(), "application/pdf")) for file in files], data=fields
    )


def merged(context: Context, *pages: PageStatus, status: DocumentStatus = DocumentStatus.COMPLETED) -> str:
    document_id = insert_document(context, status, pages)
    path = write_output(context, document_id)
    with context.db.transaction() as session:
        session.execute(update(DOCUMENTS).where(DOCUMENTS.c.id == document_id).values(merged_path=path))
    return document_id


def test_a_task_is_a_document_and_its_id_contains_the_formats(api: TestClient, context: Context, pdf: Path) -> None:
    task = upload(api, "/v1/convert/file/async", pdf, to_formats=["md", "html"], md_page_break_placeholder="\f").json()
    assert (task["task_type"], task["task_status"], task["failure"]) == ("convert", "pending", None)
    document_id, _, wanted = task["task_id"].partition("-")
    assert wanted == "mh-0c"
    with context.db.read() as session:
        row = session.execute(select(DOCUMENTS)).one()
    assert (row.id, row.filename, row.allow_partial) == (document_id, "report.pdf", True)
    assert api.get(f"/v1/status/poll/{task['task_id']}").json() == task
    waiting = api.get(f"/v1/result/{task['task_id']}")
    assert (waiting.status_code, waiting.json()["detail"][:21]) == (404, "Task result not found")


def test_supported_options_are_kept_and_others_are_ignored(api: TestClient, context: Context, pdf: Path) -> None:
    answer = upload(
        api,
        "/v1/convert/file/async",
        pdf,
        page_range=["2", "9"],
        image_export_mode="embedded",
        abort_on_error="true",
        do_ocr="true",
        ocr_engine="tesseract",
        ocr_lang=["de", "en"],
        pipeline="vlm",
    )
    assert answer.status_code == 200, answer.text
    with context.db.read() as session:
        row = session.execute(select(DOCUMENTS)).one()
    assert (row.page_range, row.pictures, row.allow_partial) == ("2", True, False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_type": "presigned_url"}, "artifact storage to be configured"),
        ({"to_formats": "yaml"}, "to_formats"),
        ({"page_range": "0-2"}, "page"),
        ({"page_range": ["3", "4"]}, "page"),
        ({"page_range": "7"}, "page_range"),
        ({"provider": "no-such"}, "no-such"),
        ({"md_page_break_placeholder": "x" * 61}, "md_page_break_placeholder"),
    ],
)
def test_invalid_requests_are_refused_before_a_document_is_stored(
    api: TestClient, context: Context, pdf: Path, fields: dict[str, Any], message: str
) -> None:
    refused = upload(api, "/v1/convert/file/async", pdf, **fields)
    assert refused.status_code in {404, 422}, refused.text
    assert message in refused.json()["detail"]
    with context.db.read() as session:
        assert session.execute(select(DOCUMENTS)).all() == []


def test_sources_in_a_request_are_files_like_uploads(api: TestClient, pdf: Path) -> None:
    source = {"kind": "file", "base64_string": base64.b64encode(pdf.read_bytes()).decode(), "filename": "../a/b.pdf"}
    body = {"options": {"to_formats": ["json"], "do_ocr": True}, "sources": [source], "target": {"kind": "inbody"}}
    task = api.post("/v1/convert/source/async", json=body).json()
    assert task["task_id"].endswith("-j")
    uploaded = upload(api, "/v1/convert/file/async", pdf, to_formats="json").json()
    assert uploaded["task_id"] == task["task_id"]
    body["sources"] = [{**source, "base64_string": "?"}]
    assert "Base64" in api.post("/v1/convert/source", json=body).json()["detail"]
    body["sources"] = [{"kind": "s3", "bucket": "b"}]
    assert api.post("/v1/convert/source", json=body).status_code == 422


class TestFetching:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__FETCH": "true", "PENSTOCK_API__FETCH_PRIVATE": '["127.0.0.2/32"]'}

    def test_a_file_is_fetched_from_an_allowed_address(self, api: TestClient, context: Context, pdf: Path) -> None:
        handler = partial(SimpleHTTPRequestHandler, directory=str(pdf.parent))
        with ThreadingHTTPServer(("127.0.0.2", 0), handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.2:{server.server_port}/report.pdf"
            task = api.post("/v1/convert/source/async", json={"sources": [{"kind": "http", "url": url}]}).json()
            missing = api.post("/v1/convert/source", json={"sources": [{"kind": "http", "url": f"{url}x"}]})
            server.shutdown()
        assert missing.status_code == 422
        with context.db.read() as session:
            row = session.execute(select(DOCUMENTS)).one()
        assert (task["task_id"], row.filename) == (f"{row.id}-m", "report.pdf")
        assert upload(api, "/v1/convert/file/async", pdf).json()["task_id"] == task["task_id"]

    @pytest.mark.parametrize("url", ["http://127.0.0.1:1/a.pdf", "http://[::1]/a.pdf", "file:///etc/passwd"])
    def test_other_private_addresses_are_not_fetched(self, api: TestClient, url: str) -> None:
        refused = api.post("/v1/convert/source/async", json={"sources": [{"kind": "http", "url": url}]})
        assert (refused.status_code, refused.json()["code"] in {"address_refused", "bad_url"}) == (422, True)


def test_nothing_is_fetched_unless_that_is_allowed(api: TestClient) -> None:
    body = {"sources": [{"kind": "http", "url": "https://example.org/a.pdf"}]}
    refused = api.post("/v1/convert/source/async", json=body)
    assert (refused.status_code, "PENSTOCK_API__FETCH" in refused.json()["detail"]) == (403, True)


def test_a_synchronous_call_past_its_time_limit_names_the_task_that_goes_on(api: TestClient, pdf: Path) -> None:
    late = upload(api, "/v1/convert/file", pdf)
    task = upload(api, "/v1/convert/file/async", pdf).json()["task_id"]
    assert (late.status_code, late.headers["location"]) == (504, f"/v1/status/poll/{task}")
    assert task in late.json()["detail"]


class TestWaiting:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__MAX_SYNC_WAIT_S": "60", "PENSTOCK_API__THREADS": "4"}

    def test_waiting_calls_do_not_block_others(self, api: TestClient, context: Context, pdf: Path) -> None:
        upload(api, "/v1/convert/file/async", pdf)
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(upload, api, "/v1/convert/file", pdf) for _ in range(8)]
            wait_until(lambda: WAITS.now == 8, 60, "all calls wait, twice as many as there are threads")
            assert api.get("/v1/status/poll/0123456789abcdef").status_code == 404
            assert WAITS.now == 8
            with context.db.transaction() as session:
                session.execute(update(DOCUMENTS).values(status=DocumentStatus.CANCELLED))
            assert {call.result(30).json()["status"] for call in waiting} == {"failure"}


def test_a_result_has_only_the_requested_formats(api: TestClient, context: Context) -> None:
    document_id = merged(context, DONE, DONE)
    result = api.get(f"/v1/result/{document_id}-mtd-2d2d").json()
    assert (result["status"], result["errors"], result["timings"]) == ("success", [], {})
    converted = result["document"]
    assert converted["md_content"] == "text of page 1\n\n--\n\ntext of page 2"
    assert converted["text_content"] == "text of page 1\n\ntext of page 2\n"
    assert converted["doctags_content"].count("<page_break>") == 1
    assert (converted["json_content"], converted["html_content"]) == (None, None)
    # A document's id without formats is a task, too.
    plain = api.get(f"/v1/result/{document_id}").json()["document"]
    assert plain["md_content"] == "text of page 1\n\ntext of page 2"
    assert [text["text"] for text in plain["json_content"]["texts"]] == ["text of page 1", "text of page 2"]


def test_partial_result_ends_the_task_with_success_and_names_the_pages(api: TestClient, context: Context) -> None:
    document_id = merged(context, DONE, FAILED, status=DocumentStatus.PARTIAL_FAILED)
    status = api.get(f"/v1/status/poll/{document_id}", params={"wait": 5}).json()
    assert (status["task_status"], status["task_meta"]["num_partially_succeeded"]) == ("success", 1)
    result = api.get(f"/v1/result/{document_id}").json()
    assert result["status"] == "partial_success"
    assert [(error["error_message"], error["page_no"]) for error in result["errors"]] == [("page 2: it failed", 2)]
    assert "Page 2 is missing: it failed" in result["document"]["md_content"]
    assert "Page 2 is missing: it failed" in json.dumps(result["document"]["json_content"])


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (DocumentStatus.FAILED, "it broke"),
        (DocumentStatus.CANCELLED, "cancelled"),
        (DocumentStatus.PARTIAL_FAILED, "1 of 1 pages failed"),
    ],
)
def test_document_without_a_result_is_a_failure_with_its_reason(
    api: TestClient, context: Context, status: DocumentStatus, reason: str
) -> None:
    document_id = insert_document(context, status, [FAILED], error="it broke")
    task = api.get(f"/v1/status/poll/{document_id}").json()
    assert task["task_status"] == "failure"
    assert reason in task["error_message"]
    assert reason in task["failure"]["message"]
    result = api.get(f"/v1/result/{document_id}").json()
    assert (result["status"], result["document"]["md_content"]) == ("failure", None)
    assert reason in result["errors"][0]["error_message"]


def test_several_files_are_one_task_with_a_zip_file(api: TestClient, context: Context) -> None:
    first, second = merged(context, DONE), merged(context, DONE)
    running = insert_document(context, DocumentStatus.PROCESSING)
    assert api.get(f"/v1/status/poll/{first}.{running}-m").json()["task_status"] == "started"
    failed = insert_document(context, DocumentStatus.FAILED, [FAILED])
    task = f"{first}.{second}.{failed}-mj"
    meta = api.get(f"/v1/status/poll/{task}").json()["task_meta"]
    assert (meta["num_docs"], meta["num_succeeded"], meta["num_failed"]) == (3, 2, 1)
    answer = api.get(f"/v1/result/{task}")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == ["report.md", "report.json", "report-2.md", "report-2.json"]
        assert archive.read("report.md") == b"text of page 1"


def test_pictures_are_embedded_or_left_out_without_reading_other_files(api: TestClient, context: Context) -> None:
    document_id = merged(context, DONE)
    folder = output_folder(context.settings, document_id) / "pictures"
    folder.mkdir(parents=True)
    (folder / "page-0001-1.png").write_bytes(b"png")
    (folder.parent / "secret.png").write_bytes(b"secret")
    links = ["pictures/page-0001-1.png", "pictures/../secret.png", "pictures/page-0001-2.png"]
    blocks = [{"type": "picture", "text": "", "bbox": [0, 0, 72, 72], "link": link} for link in links]
    layout = {"width": 100.0, "height": 100.0, "unit": "pt", "blocks": blocks}
    with context.db.transaction() as session:
        page = session.execute(select(PAGES.c.id).where(PAGES.c.document_id == document_id)).scalar_one()
        text = "\n\n".join(f"![]({link})" for link in links)
        session.execute(update(PAGES).where(PAGES.c.id == page).values(content=text))
        session.execute(insert(LAYOUTS).values(page_id=page, data=layout))
    embedded = api.get(f"/v1/result/{document_id}-mje").json()["document"]
    uri = "data:image/png;base64,cG5n"
    assert embedded["md_content"].split("\n\n")[::2] == [f"![Image]({uri})", "<!-- image -->"]
    assert [picture.get("image", {}).get("uri") for picture in embedded["json_content"]["pictures"]] == [
        uri,
        None,
        None,
    ]
    without = api.get(f"/v1/result/{document_id}-mj").json()["document"]
    assert "base64" not in json.dumps(without)


@pytest.mark.parametrize(
    "task", ["0123456789abcdef", "x", "0123456789abcdef-q", "0123456789abcdef-m-0", "0" * 16 + "." * 9]
)
def test_an_unknown_task_has_the_message_that_clients_expect(api: TestClient, task: str) -> None:
    for path in ("status/poll", "result"):
        answer = api.get(f"/v1/{path}/{task}")
        assert (answer.status_code, answer.json()["detail"]) == (404, "Task not found.")


def test_requests_leave_no_temporary_files(api: TestClient, context: Context, pdf: Path) -> None:
    upload(api, "/v1/convert/file/async", pdf)
    upload(api, "/v1/convert/file/async", pdf, to_formats="yaml")
    assert upload(api, "/v1/convert/file", *[pdf] * 21).status_code in {400, 413, 422}
    assert api.post("/v1/convert/file", data={"to_formats": "md"}).status_code in {415, 422}
    remaining = [
        path for folder in (context.settings.temp_dir, context.settings.upload_dir) for path in folder.glob("*")
    ]
    assert [path.name for path in remaining if len(path.name) != 16] == []


class TestChunks:
    def test_chunks_have_headings_pages_and_items(self, api: TestClient, context: Context) -> None:
        document_id = merged(context, DONE, DONE)
        table = "| N | V |\n| --- | --- |\n| x | 1 |"
        text = f"# Report\n\n## One\n\nFirst words.\n\n- a\n- b\n\n{table}\n\n## Two\n\nMore words."
        with context.db.transaction() as session:
            session.execute(update(PAGES).where(PAGES.c.page == 1).values(content=text))
        whole = api.get(f"/v1/result/{document_id}-m-ki512").json()
        assert [chunk["raw_text"] for chunk in whole["chunks"]] == [None] * 5
        assert [chunk["text"] for chunk in whole["chunks"]] == [
            "Report\nOne\nFirst words.",
            "Report\nOne\n- a\n- b",
            "Report\nOne\nx, V = 1",
            "Report\nTwo\nMore words.",
            "Report\nTwo\ntext of page 2",
        ]
        assert [chunk["page_numbers"] for chunk in whole["chunks"]] == [[1]] * 4 + [[2]]
        assert (whole["documents"][0]["status"], whole["documents"][0]["content"]["md_content"]) == ("success", None)
        joined = api.get(f"/v1/result/{document_id}-m-ky512trd").json()
        first, second = joined["chunks"]
        assert first["raw_text"] == f"First words.\n\n- a\n- b\n\n{table}"
        assert (first["headings"], first["num_tokens"] > 10, second["page_numbers"]) == (
            ["Report", "One"],
            True,
            [1, 2],
        )
        assert first["doc_items"] == ["#/texts/2", "#/texts/3", "#/texts/4", "#/tables/0"]
        assert joined["documents"][0]["content"]["md_content"].startswith("# Report")
        small = api.get(f"/v1/result/{document_id}-m-ky8s").json()["chunks"]
        assert len(small) > 5

    def test_options_become_the_task(self, api: TestClient, pdf: Path) -> None:
        fields = {
            "convert_page_range": ["1", "1"],
            "chunking_max_tokens": "100",
            "chunking_tokenizer": "any/model",
            "chunking_include_raw_text": "true",
            "include_converted_doc": "true",
        }
        task = upload(api, "/v1/chunk/hybrid/file/async", pdf, **fields).json()
        assert (task["task_type"], task["task_id"][16:]) == ("chunk", "-m-ky100rd")
        assert api.get(f"/v1/status/poll/{task['task_id']}").json() == task
        source = {"kind": "file", "base64_string": base64.b64encode(pdf.read_bytes()).decode(), "filename": "b.pdf"}
        body = {"sources": [source], "chunking_options": {"chunker": "hierarchical", "use_markdown_tables": True}}
        task = api.post("/v1/chunk/hierarchical/source/async", json=body).json()
        assert task["task_id"][16:] == "-m-ki512t"
        assert upload(api, "/v1/chunk/hierarchical/file", pdf).status_code == 504
        refused = [
            upload(api, "/v1/chunk/hybrid/file", pdf, chunking_max_tokens="0"),
            upload(api, "/v1/chunk/hybrid/file", pdf, target_type="zip"),
            upload(api, "/v1/chunk/other/file", pdf),
        ]
        assert [answer.status_code for answer in refused] == [422] * 3


class TestSocket:
    def test_a_client_follows_a_task_to_its_end(self, api: TestClient, context: Context) -> None:
        document_id = insert_document(context, DocumentStatus.PROCESSING, [PageStatus.PENDING])
        with api.websocket_connect(f"ws://127.0.0.1/v1/status/ws/{document_id}-m") as socket:
            first, second = socket.receive_json(), socket.receive_json()
            assert (first["message"], second["message"]) == ("connection", "update")
            assert first["task"] == second["task"] == api.get(f"/v1/status/poll/{document_id}-m").json()
            socket.send_text("next")
            assert socket.receive_json() == second
            with context.db.transaction() as session:
                session.execute(update(DOCUMENTS).values(status=DocumentStatus.CANCELLED))
            assert socket.receive_json()["task"]["task_status"] == "failure"
            with pytest.raises(WebSocketDisconnect):
                socket.receive_json()

    def test_an_unknown_task_is_an_error(self, api: TestClient) -> None:
        with api.websocket_connect("ws://127.0.0.1/v1/status/ws/0123456789abcdef") as socket:
            assert socket.receive_json() == {"message": "error", "task": None, "error": "Task not found."}

    @pytest.mark.parametrize("headers", [{"X-Api-Key": "pstk_wrong"}, {"Origin": "https://other.example"}])
    def test_strangers_are_refused(self, api: TestClient, headers: dict[str, str]) -> None:
        with (
            pytest.raises(WebSocketDisconnect),
            api.websocket_connect("ws://127.0.0.1/v1/status/ws/0123456789abcdef", headers=headers),
        ):
            pass

    def test_a_server_with_keys_takes_them_from_the_header_alone(self, connect: Connect) -> None:
        keyless, reader = connect(host="0.0.0.0"), connect(Scope.READ, host="0.0.0.0")
        key = reader.headers["authorization"].partition(" ")[2]
        address = f"ws://127.0.0.1/v1/status/ws/0123456789abcdef?api_key={key}"
        with pytest.raises(WebSocketDisconnect), keyless.websocket_connect(address):
            pass
        with reader.websocket_connect(address) as socket:
            assert socket.receive_json()["error"] == "Task not found."


class TestCallbacks:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_WEBHOOKS__CALLBACKS": "true"}

    def test_a_request_names_addresses_for_its_progress(self, api: TestClient, context: Context, pdf: Path) -> None:
        source = {"kind": "file", "base64_string": base64.b64encode(pdf.read_bytes()).decode(), "filename": "b.pdf"}
        spec: dict[str, Any] = {"url": "https://example.com/progress", "headers": {"Authorization": "Bearer x"}}
        body = {"sources": [source], "callbacks": [spec]}
        task = api.post("/v1/convert/source/async", json=body).json()
        chunked = api.post("/v1/chunk/hybrid/source/async", json=body).json()
        with context.db.read() as session:
            callbacks = [Callback.parse(text) for text in session.scalars(select(ENDPOINTS.c.callback))]
        assert {callback.task_id for callback in callbacks} == {task["task_id"], chunked["task_id"]}
        assert all(callback.headers == spec["headers"] and callback.allow_partial for callback in callbacks)
        for wrong in ({"headers": {"Host": "a"}}, {"headers": {"x": "a\r\nb"}}, {"ca_cert": "PEM"}, {"url": "ftp://a"}):
            refused = api.post("/v1/convert/source/async", json={**body, "callbacks": [{**spec, **wrong}]})
            assert refused.status_code == 422, wrong


def test_callbacks_are_refused_before_a_document_is_stored(api: TestClient, context: Context) -> None:
    source = {"kind": "file", "base64_string": "", "filename": "b.pdf"}
    body = {"sources": [source], "callbacks": [{"url": "https://example.com/"}]}
    refused = api.post("/v1/convert/source/async", json=body)
    assert (refused.status_code, "PENSTOCK_WEBHOOKS__CALLBACKS" in refused.json()["detail"]) == (403, True)


def test_two_equal_files_are_two_results(api: TestClient, context: Context, pdf: Path) -> None:
    task = upload(api, "/v1/convert/file/async", pdf, pdf).json()
    first, second = task["task_id"].split("-")[0].split(".")
    assert (first, task["task_meta"]["num_docs"]) == (second, 2)
    document_id = merged(context, DONE)
    with zipfile.ZipFile(io.BytesIO(api.get(f"/v1/result/{document_id}.{document_id}-m").content)) as archive:
        assert archive.namelist() == ["report.md", "report-2.md"]


def test_a_converted_document_beside_its_chunks_is_a_docling_document(api: TestClient, context: Context) -> None:
    document_id = merged(context, DONE)
    (beside,) = api.get(f"/v1/result/{document_id}-m-ky512d").json()["documents"]
    assert beside["content"]["json_content"]["schema_name"] == "DoclingDocument"
    assert beside["content"]["md_content"] == "text of page 1"
    (without,) = api.get(f"/v1/result/{document_id}-m-ky512").json()["documents"]
    assert without["content"]["json_content"] is None


def test_the_other_addresses_of_docling_serve_answer_with_the_reason(api: TestClient) -> None:
    assert [api.get(path).json()["status"] for path in ("/livez", "/ready", "/readyz")] == ["ok"] * 3
    for path in ("clear/converters", "clear/results", "memory/stats", "memory/counts"):
        answer = api.get(f"/v1/{path}")
        assert (answer.status_code, answer.json()["code"]) == (501, "not_supported")
    assert "/v1/convert/source" in api.post("/v1/convert/source/batch", json={}).json()["detail"]
