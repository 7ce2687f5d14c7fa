import io
import json
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pypdfium2
import pytest
from PIL import Image
from sqlalchemy import select, update
from starlette.testclient import TestClient

from pipeline.engine.claims import Owner
from pipeline.flows.documents import queries
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.models import LAYOUTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.work.split import split_document
from pipeline.reading.export.formats import Format
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, problem
from tests.support.documents import insert_document, mentions, set_row, write_output
from tests.support.opendocuments import open_document, slide
from tests.support.samples import ENCRYPTED_FOLDER, PASSWORD, encrypted_pdf, scanned_pdf, text_pdf

C, F = PageStatus.COMPLETED, PageStatus.FAILED


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    return text_pdf(tmp_path / "report.pdf", [["first page"], ["second page"]])


def send(api: TestClient, path: Path, name: str = "report.pdf", **fields: Any) -> Any:
    return api.post(DOCUMENTS, files={"file": (name, path.read_bytes())}, data=fields)


def left_behind(context: Context) -> list[Path]:
    folder = context.settings.upload_dir
    return [path for path in folder.iterdir() if path.name.startswith("incoming-")] if folder.is_dir() else []


def test_an_upload_becomes_a_document_and_a_repeated_one_the_same_document(
    api: TestClient, context: Context, pdf: Path
) -> None:
    sent = send(api, pdf, pages="2", allow_partial="true")
    assert sent.status_code == 202, sent.text
    document = sent.json()
    assert (document["filename"], document["type"], document["status"]) == ("report.pdf", "pdf", "PENDING")
    assert (document["page_range"], document["allow_partial"]) == ("2", True)
    assert sent.headers["location"] == f"{DOCUMENTS}/{document['id']}"
    assert int(sent.headers["retry-after"]) > 0
    shown = api.get(sent.headers["location"]).json()
    assert shown == {**document, "reason": shown["reason"]}
    assert shown["reason"]["kind"] == "workers", "the answer says that no worker is running"
    raw = api.post(
        DOCUMENTS,
        params={"page_range": "2"},
        content=pdf.read_bytes(),
        headers={"content-type": "application/pdf", "x-filename": "r%C3%A9port.pdf"},
    )
    assert raw.json()["id"] == document["id"]
    stored = context.settings.upload_dir / document["id"] / "source.pdf"
    assert stored.read_bytes() == pdf.read_bytes()
    assert not left_behind(context)
    assert "/" not in send(api, pdf, "../../etc/passwd.pdf", fresh="true").json()["filename"]


@pytest.mark.parametrize(
    ("content", "name", "fields", "status", "code"),
    [
        (b"", "a.pdf", {}, 422, "empty"),
        (b"%PDF-1.7 nothing", "a.pdf", {}, 422, "corrupt"),
        (b"hello", "a.bin", {}, 415, "unsupported"),
        (None, "a.pdf", {"page_range": "9"}, 422, "page_range"),
        (None, "a.pdf", {"page_range": "x"}, 422, "invalid"),
        (None, "a.pdf", {"colour": "red"}, 422, "invalid"),
        (None, "a.pdf", {"provider": "nobody"}, 422, "unknown_provider"),
        (None, "a.pdf", {"provider": "no\x00body"}, 422, "invalid"),
    ],
)
def test_an_unconvertible_upload_is_refused_and_leaves_nothing(
    api: TestClient, context: Context, pdf: Path, content: bytes | None, name: str, fields: Any, status: int, code: str
) -> None:
    body = pdf.read_bytes() if content is None else content
    detail = problem(api.post(DOCUMENTS, files={"file": (name, body)}, data=fields), status, code)
    assert "incoming-" not in detail
    assert str(context.settings.data_dir) not in detail
    assert not left_behind(context)
    assert api.get(DOCUMENTS).json()["items"] == []


def test_broken_forms_are_refused(api: TestClient, context: Context, tmp_path: Path) -> None:
    kind = {"content-type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n%PDF'
    problem(api.post(DOCUMENTS, content=part, headers=kind), 400, "bad_multipart")
    problem(api.post(DOCUMENTS, content=b"nonsense", headers=kind), 400, "bad_multipart")
    problem(api.post(DOCUMENTS, content=b"", headers={"content-type": "multipart/form-data"}), 400, "bad_multipart")
    problem(api.post(DOCUMENTS, json={}), 415, "unsupported")
    problem(api.post(DOCUMENTS, data={"provider": "local"}, files={"other": b""}), 422, "empty")
    problem(api.post(DOCUMENTS, files=[("file", b"1"), ("file", b"2")]), 413, "too_large")
    problem(api.post(DOCUMENTS, files={"file": b"1"}, data={f"f{n}": "1" for n in range(150)}), 413, "too_large")
    secret = encrypted_pdf(tmp_path / "secret.pdf")
    assert "secret.pdf" in problem(send(api, secret, "secret.pdf"), 422, "encrypted")
    assert not left_behind(context)


def test_a_password_opens_an_encrypted_pdf_and_is_kept_nowhere(
    api: TestClient, context: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = ENCRYPTED_FOLDER / "aes-256.pdf"
    assert "`password`" in problem(send(api, ledger, "ledger.pdf"), 422, "encrypted")
    assert "ledger.pdf" in problem(send(api, ledger, "ledger.pdf", password="wrong"), 422, "wrong_password")
    problem(send(api, ledger, "ledger.pdf", password=PASSWORD, pages="x"), 422, "invalid")
    assert not left_behind(context)
    sent = api.post(
        DOCUMENTS,
        files={"file": ("ledger.pdf", ledger.read_bytes())},
        data={"password": PASSWORD},
        headers={"Idempotency-Key": "ledger"},
    )
    assert sent.status_code == 202, sent.text
    assert sent.json()["type"] == "pdf"
    octets = {"Content-Type": "application/octet-stream"}
    raw = api.post(DOCUMENTS, params={"password": "x"}, content=ledger.read_bytes(), headers=octets)
    problem(raw, 400, "bad_request")
    assert not mentions(context, PASSWORD[-8:])
    assert PASSWORD not in caplog.text


def test_each_file_of_an_archive_becomes_a_document_or_has_a_reason(
    api: TestClient, context: Context, tmp_path: Path, pdf: Path
) -> None:
    pile = tmp_path / "pile.zip"
    with zipfile.ZipFile(pile, "w") as written:
        written.write(pdf, "2026/report.pdf")
        written.writestr("program.exe", b"MZ" + bytes(50))
        written.writestr("cut.pdf", b"%PDF-1.4")
        written.writestr("notes.md", "# Notes")
    assert f"{DOCUMENTS}/archive" in problem(send(api, pile, "pile.zip"), 415, "unsupported")
    sent = api.post(f"{DOCUMENTS}/archive", files={"file": ("pile.zip", pile.read_bytes())})
    assert sent.status_code == 202, sent.text
    files = sent.json()["files"]
    assert [file["name"] for file in files] == ["2026/report.pdf", "program.exe", "cut.pdf", "notes.md"]
    assert [file["document"] and file["document"]["filename"] for file in files] == [
        "report.pdf",
        None,
        None,
        "notes.md",
    ]
    assert files[1]["reason"] == "not of a type that Penstock converts"
    assert "cut.pdf" in files[2]["reason"]
    assert send(api, pdf).json()["id"] == files[0]["document"]["id"], "the same file is the same document"
    assert not left_behind(context)
    raw = api.post(f"{DOCUMENTS}/archive", files={"file": ("report.pdf", pdf.read_bytes())})
    assert DOCUMENTS in problem(raw, 415, "unsupported")
    with zipfile.ZipFile(pile, "w") as written:
        written.writestr("program.exe", b"MZ" + bytes(50))
    nothing = api.post(f"{DOCUMENTS}/archive", files={"file": ("pile.zip", pile.read_bytes())})
    assert "program.exe" in problem(nothing, 422, "no_inputs")


@pytest.mark.both_databases
def test_lists_are_filtered_and_continue_after_the_cursor(api: TestClient, context: Context) -> None:
    now = context.db.now()
    ids = [
        insert_document(
            context, DocumentStatus.FAILED, filename=f"Report {n}%.pdf", created_at=now - timedelta(hours=n)
        )
        for n in range(5)
    ]
    done = insert_document(context, DocumentStatus.COMPLETED, [C], created_at=now - timedelta(hours=9))

    def listed(**params: Any) -> list[str]:
        ids, cursor = [], None
        while True:
            page = api.get(DOCUMENTS, params={**params, **({"cursor": cursor} if cursor else {})}).json()
            ids += [document["id"] for document in page["items"]]
            cursor = page["next_cursor"]
            if not cursor:
                return ids

    assert listed(limit=2) == [*ids, done]
    assert listed(status="COMPLETED") == [done]
    assert listed(status=["COMPLETED", "FAILED"], limit=4) == [*ids, done]
    assert listed(q="report 3%") == [ids[3]]
    assert listed(q="100%") == []
    assert listed(created_before=(now - timedelta(hours=3, minutes=30)).isoformat()) == [ids[4], done]
    problem(api.get(DOCUMENTS, params={"status": "NONSENSE"}), 422, "invalid")
    problem(api.get(DOCUMENTS, params={"created_from": "2026-01-01T00:00:00"}), 422, "invalid")


def test_documents_are_counted_by_their_states(api: TestClient, context: Context) -> None:
    for status in (DocumentStatus.FAILED, DocumentStatus.COMPLETED, DocumentStatus.COMPLETED):
        insert_document(context, status)
    assert api.get(f"{DOCUMENTS}/counts").json() == {"total": 3, "by_status": {"FAILED": 1, "COMPLETED": 2}}
    assert api.get(f"{DOCUMENTS}/counts", params={"q": "letter"}).json() == {"total": 0, "by_status": {}}
    listed = api.get(DOCUMENTS).json()["items"]
    assert {item["status"]: item["reason"] and item["reason"]["kind"] for item in listed} == {
        "FAILED": "failed",
        "COMPLETED": None,
    }


def test_pages_attempts_blocks_and_results(api: TestClient, context: Context) -> None:
    url = f"{DOCUMENTS}/{insert_document(context, DocumentStatus.PARTIAL_FAILED, [C, F, C])}"
    first = api.get(f"{url}/pages", params={"limit": 2}).json()
    assert [page["status"] for page in first["items"]] == ["COMPLETED", "FAILED"]
    rest = api.get(f"{url}/pages", params={"cursor": first["next_cursor"]}).json()
    assert [page["page"] for page in rest["items"]] == [3]
    assert [page["page"] for page in api.get(f"{url}/pages", params={"status": "FAILED"}).json()["items"]] == [2]
    assert api.get(f"{url}/pages/1").json()["markdown"] == "text of page 1"
    assert api.get(f"{url}/pages/1/blocks").json()["blocks"][0]["text"] == "text of page 1"
    assert [page["page"] for page in api.get(f"{url}/json").json()["pages"]] == [1, 2, 3]
    for path in ("attempts", "pages/1/attempts", "pictures"):
        assert api.get(f"{url}/{path}").json() == {"items": [], "next_cursor": None}
    problem(api.get(f"{url}/pages/4"), 404, "unknown_page")
    problem(api.get(f"{url}/pages/4/picture"), 404, "unknown_page")
    problem(api.get(f"{url}/markdown"), 409, "no_result")
    problem(api.get(f"{url}/manifest"), 409, "no_result")
    problem(api.get(f"{url}/pictures/..%2fsource.pdf"), 404, "not_found")
    problem(api.get(f"{url}/pictures/none.png"), 404, "no_picture")


def test_results_are_attachments(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.COMPLETED, [C], filename="bericht é.pdf")
    set_row(context, document_id, merged_path=write_output(context, document_id, "# Title\n"))
    answer = api.get(f"{DOCUMENTS}/{document_id}/markdown")
    assert answer.text == "# Title\n"
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_result_as_one_archive(api: TestClient, context: Context) -> None:
    document = insert_document(context, DocumentStatus.COMPLETED, [C, C], filename="bericht über.pdf")
    problem(api.get(f"{DOCUMENTS}/{document}/archive"), 409, "no_result")
    merged = Path(write_output(context, document, "merged ![](pictures/page-0001-1.png)\n"))
    set_row(context, document, merged_path=str(merged))
    facts = {"document": {"id": document, "worker_id": "w", "merged_path": str(merged)}, "pages": []}
    merged.with_suffix(".manifest.json").write_text(json.dumps(facts))
    (merged.parent / "pictures").mkdir()
    (merged.parent / "pictures" / "page-0001-1.png").write_bytes(b"a picture")
    (merged.parent / "pictures" / "other.txt").write_bytes(b"something else")
    answer = api.get(f"{DOCUMENTS}/{document}/archive")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''bericht%20%C3%BCber.zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "bericht über.md",
            "pictures/page-0001-1.png",
            "bericht über.manifest.json",
            "bericht über.json",
        ]
        assert archive.read("bericht über.md") == merged.read_bytes()
        assert json.loads(archive.read("bericht über.manifest.json"))["document"] == {"id": document}
        assert [page["page"] for page in json.loads(archive.read("bericht über.json"))["pages"]] == [1, 2]


def test_an_office_file_needs_no_provider_and_has_no_pictures(
    api: TestClient, context: Context, tmp_path: Path
) -> None:
    body = slide("One", "") + slide("Two", "")
    slides = open_document(tmp_path / "stored", "presentation", body)
    problem(send(api, slides, "slides.odp", pages="3"), 422, "page_range")
    sent = send(api, slides, "slides.odp", pages="2")
    assert sent.status_code == 202, sent.text
    document = sent.json()
    assert (document["type"], document["provider"], document["page_range"]) == ("odp", "local", "2")
    split_document(context, document["id"], Owner("w", "r"))
    stored = queries.pages(context, document["id"])
    assert [(page.page_source, page.provider) for page in stored] == [(2, "local")]
    problem(api.get(f"{DOCUMENTS}/{document['id']}/pages/1/picture"), 404, "no_picture")


def test_the_result_in_every_format(api: TestClient, context: Context) -> None:
    document = insert_document(context, DocumentStatus.COMPLETED, [C], filename="bericht über.pdf")
    url = f"{DOCUMENTS}/{document}/result"
    problem(api.get(url), 409, "no_result")
    merged = write_output(context, document, "<!-- Page 1 -->\n\ntext of page 1\n")
    set_row(context, document, merged_path=merged, type="pdf")
    with context.db.transaction() as session:
        session.execute(update(PAGES).values(content="text *of*\n\n| a | b |\n| - | - |\n| =1 | 2 |"))
    answers = {form: api.get(url, params={"format": form}) for form in Format}
    assert answers[Format.MD].text.startswith("<!-- Page 1 -->")
    assert api.get(url, params={"page_markers": False}).text.startswith("text *of*")
    assert answers[Format.TXT].text == "text of\n\na\tb\n=1\t2\n"
    assert "<p>text of</p>" in answers[Format.HTML].text
    assert answers[Format.JSON].json()["pages"][0]["page"] == 1
    assert answers[Format.DOCLING].json()["schema_name"] == "DoclingDocument"
    problem(answers[Format.PDF], 404, "no_picture")
    problem(api.get(url, params={"format": "doc"}), 422, "invalid")
    assert answers[Format.HTML].headers["content-disposition"].startswith("attachment;")
    source = context.settings.upload_dir / document / "source.pdf"
    source.parent.mkdir(parents=True)
    scanned_pdf(source, ["x"])
    with context.db.transaction() as session:
        page_id = session.execute(select(PAGES.c.id)).scalar_one()
        line = ["Found words", 60, 60, 300, 80, 0, []]
        layout = {"width": 595, "height": 842, "unit": "pt", "blocks": [], "lines": [line]}
        session.execute(LAYOUTS.insert().values(page_id=page_id, data=layout))
    answer = api.get(url, params={"format": "pdf"})
    assert answer.headers["content-type"] == "application/pdf"
    assert "bericht%20%C3%BCber.searchable.pdf" in answer.headers["content-disposition"]
    with pypdfium2.PdfDocument(answer.content) as pdf:
        assert pdf[0].get_textpage().get_text_range() == "Found words"
    whole = api.get(f"{DOCUMENTS}/{document}/archive", params={"split": "pages", "tables": "csv"})
    with zipfile.ZipFile(io.BytesIO(whole.content)) as archive:
        stem = "bericht über"
        assert {f"{stem}.pages/{stem}-0001.md"} <= set(archive.namelist())


def test_the_picture_of_a_page_is_rendered_once_and_can_be_kept(api: TestClient, context: Context, pdf: Path) -> None:
    document = send(api, pdf).json()["id"]
    problem(api.get(f"{DOCUMENTS}/{document}/pages/1/picture"), 404, "unknown_page")
    shown = insert_document(context, DocumentStatus.COMPLETED, [C, C])
    stored = context.settings.upload_dir / shown / "source.pdf"
    stored.parent.mkdir()
    stored.write_bytes(pdf.read_bytes())
    url = f"{DOCUMENTS}/{shown}/pages/2/picture"
    picture = api.get(url, params={"dpi": 36})
    assert picture.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(picture.content)).size == (306, 396)
    small = api.get(url, params={"width": 120, "encoding": "webp"})
    assert small.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(small.content)).size == (120, 156)
    assert small.headers["etag"] != picture.headers["etag"]
    problem(api.get(url, params={"width": 9}), 422, "invalid")
    problem(api.get(url, params={"encoding": "bmp"}), 422, "invalid")
    stored.unlink()
    assert api.get(url, params={"dpi": 36}).content == picture.content
    assert len(list(context.settings.view_dir.glob("*/*"))) == 2
    tag = {"if-none-match": picture.headers["etag"]}
    assert api.get(url, params={"dpi": 36}, headers=tag).status_code == 304
    problem(api.get(url, params={"dpi": 50}), 404, "no_picture")
    assert api.delete(f"{DOCUMENTS}/{shown}").status_code == 204
    assert not list(context.settings.view_dir.iterdir())


def test_every_operation_of_the_command_line(api: TestClient, context: Context) -> None:
    url = f"{DOCUMENTS}/{insert_document(context, DocumentStatus.PARTIAL_FAILED, [C, F])}"
    problem(api.post(f"{url}/remerge"), 409, "incomplete")
    problem(api.post(f"{url}/pause"), 409, "illegal_state")
    retried = api.post(f"{url}/retry-failed")
    assert (retried.status_code, retried.json()["status"]) == (202, "PROCESSING")
    assert retried.headers["location"] == url
    assert api.post(f"{url}/pause").json()["status"] == "PAUSED"
    assert api.post(f"{url}/resume").json()["status"] == "PROCESSING"
    assert api.post(f"{url}/cancel").json()["status"] == "CANCELLED"
    assert api.post(f"{url}/pages/1/retry", json={}).json()["status"] == "PROCESSING"
    problem(api.post(f"{url}/pages/1/attempts/7/promote"), 409, "illegal_state")
    api.post(f"{url}/cancel")
    problem(api.post(f"{url}/pages/1/attempts/7/promote"), 404, "unknown_attempt")
    assert api.post(f"{url}/remerge", json={"allow_partial": True}).status_code in {202, 409}
    api.post(f"{url}/cancel")
    assert api.post(f"{url}/retry", json={"fresh": True}).json()["status"] == "PENDING"
    problem(api.post(f"{url}/retry", json={"nonsense": True}), 422, "invalid")
    assert api.delete(url).status_code == 204
    problem(api.delete(url), 404, "unknown_document")


def test_a_bulk_action_covers_all_matching_documents(api: TestClient, context: Context) -> None:
    waiting = [insert_document(context, DocumentStatus.PENDING, []) for _ in range(3)]
    done = insert_document(context, DocumentStatus.COMPLETED, [C])
    acts = f"{DOCUMENTS}/actions"
    for body in ({}, {"filter": {}}, {"ids": [done], "all_matching": True}, {"ids": ["../x"]}):
        problem(api.post(f"{acts}/cancel", json=body), 422, "invalid")
    problem(api.post(f"{acts}/explode", json={"ids": []}), 422, "invalid")
    paused = api.post(f"{acts}/pause", json={"filter": {}, "all_matching": True}).json()
    assert (paused["matched"], paused["done"], paused["next_cursor"]) == (4, 3, None)
    assert [skipped["id"] for skipped in paused["skipped"]] == [done]
    cancelled = api.post(f"{acts}/cancel", json={"filter": {"status": ["PAUSED"]}, "all_matching": True}).json()
    assert (cancelled["matched"], cancelled["done"]) == (3, 3)
    assert api.post(f"{acts}/delete", json={"ids": [*waiting, *waiting]}).json()["done"] == 3
    assert [document["id"] for document in api.get(DOCUMENTS).json()["items"]] == [done]


def test_waiting_ends_with_the_document_or_the_time(api: TestClient, context: Context) -> None:
    done = insert_document(context, DocumentStatus.COMPLETED, [C])
    assert api.get(f"{DOCUMENTS}/{done}", params={"wait": 60}).json()["settled"]
    open_ = insert_document(context, DocumentStatus.PENDING, [])
    assert not api.get(f"{DOCUMENTS}/{open_}", params={"wait": 0.2}).json()["settled"]
    problem(api.get(f"{DOCUMENTS}/{open_}", params={"wait": 61}), 422, "invalid")


def test_an_upload_without_a_key_is_refused_before_it_is_read(connect: Connect, context: Context, pdf: Path) -> None:
    problem(send(connect(host="0.0.0.0"), pdf), 401, "unauthorized")
    assert not context.settings.upload_dir.exists()


@pytest.mark.both_databases
def test_pages_are_searched_by_their_words(api: TestClient, context: Context) -> None:
    merged: dict[str, Any] = {"finished_at": context.db.now(), "unindexed": True, "source_path": "/home/me/a.pdf"}
    document_id = insert_document(context, DocumentStatus.COMPLETED, [C, C], **merged)
    assert api.get(f"{DOCUMENTS}/search", params={"q": "text"}).json() == {
        "hits": [],
        "any_word": False,
        "unindexed": 1,
    }
    FLOW.catch_up(context)
    result = api.get(f"{DOCUMENTS}/search", params={"q": "text 2", "status": "COMPLETED", "name": "report"}).json()
    hit = {
        "document_id": document_id,
        "filename": "report.pdf",
        "page": 2,
        "page_source": 2,
        "passage": "text of page 2",
    }
    assert result == {"hits": [hit], "any_word": False, "unindexed": 0}
    problem(api.get(f"{DOCUMENTS}/search", params={"q": ""}), 422, "invalid")
    problem(api.get(f"{DOCUMENTS}/search", params={"q": " "}), 422, "empty_query")
