"""A run of the connector for paperless-ngx: a real client and server, over a documents flow by script."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response

from pipeline.engine.errors import UserError
from pipeline.flows.documents.submission import Options
from pipeline.interfaces.cli.connect import run as runs
from pipeline.interfaces.cli.connect.client import Paperless, PaperlessError
from pipeline.interfaces.cli.connect.command import drop_lost
from pipeline.interfaces.cli.connect.record import Record, Records
from pipeline.interfaces.cli.connect.rules import Part, Tags
from pipeline.interfaces.cli.connect.run import Run
from tests.support.paperless_server import TOKEN, PaperlessServer, Stored

PAGE = "# Invoice 12\n\nTo **you**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
PLAIN = "Invoice 12\nTo you\na\tb\n1\t2"


class Flow:
    """Documents that are converted at once. `before`: called with a document before its first state is read."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, bytes]] = []
        self.pages: dict[bytes, list[str]] = {}
        self.status = "COMPLETED"
        self.before: Callable[[], object] = lambda: None
        self.pdfs: Iterator[bytes] = (b"searchable %d" % number for number in count())
        """The next searchable PDFs; an empty one stands for the document's file."""
        self.folder = Path()
        self._known: dict[str, bytes] = {}

    def submit_upload(self, copy: Path, filename: str, _: Options) -> Any:
        data = copy.read_bytes()
        if data == b"bad":
            raise UserError("bad.pdf is not of a supported type", code="unsupported_type")
        self.submitted.append((filename, data))
        self._known[hashlib.sha256(data).hexdigest()] = data
        return SimpleNamespace(id=hashlib.sha256(data).hexdigest())

    def several(self, ids: list[str]) -> list[Any]:
        self.before()
        facts = {"completed_count": 1, "failed_count": 0, "pages": 1, "provider": "local", "error": "no page"}
        return [
            SimpleNamespace(id=each, settled=True, status=SimpleNamespace(name=self.status), **facts)
            for each in ids
            if each in self._known
        ]

    def searchable_pdf(self, document_id: str, progress: Callable[[int, int], object]) -> Path:
        progress(1, 1)
        path = self.folder / "searchable.pdf"
        path.write_bytes(next(self.pdfs) or self._known[document_id])
        return path

    def page_texts(self, document_id: str) -> list[tuple[int, str]]:
        return list(enumerate(self.pages.get(self._known[document_id], [PAGE]), 1))


class Silent:
    """A progress that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def show(self, *_: object) -> None:
        pass

    remove = keep = show


@pytest.fixture(params=[2, 3], ids=["paperless 2", "paperless 3"])
def server(request: pytest.FixtureRequest) -> Iterator[PaperlessServer]:
    with PaperlessServer(request.param) as server:
        yield server


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flow:
    flow = Flow()
    flow.folder = tmp_path
    monkeypatch.setattr(runs, "documents", flow)
    monkeypatch.setattr(runs, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(runs, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(runs, "get_context", lambda: SimpleNamespace(settings=SimpleNamespace(upload_dir=tmp_path)))
    monkeypatch.setattr("pipeline.flows.documents.submission.check", lambda *_: None)
    return flow


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "records")


@pytest.fixture
def over(server: PaperlessServer, flow: Flow, records: Records) -> Callable[..., Run]:
    """Runs over all tagged documents."""

    def over(*parts: Part) -> Run:
        client = Paperless(server.url, TOKEN, 1_000_000)
        tags = Tags(server.tag("penstock"), server.tag("penstock-done"), server.tag("penstock-failed"))
        progress: Any = Silent()
        run = Run(client, records, tags, frozenset(parts or {Part.TEXT}), Options(), progress)
        run.over(client.tagged(tags.waiting))
        return run

    return over


def notes(run: Run) -> str:
    return "\n".join(run.progress.notes)  # type: ignore[attr-defined]


def record_of(stored: Stored, records: Records) -> Record:
    record = records.load(stored.id)
    assert record is not None
    return record


def test_text_and_title_come_without_markup(server: PaperlessServer, over: Callable[..., Run]) -> None:
    stored = server.add(b"a", "penstock", "inbox")
    assert over(Part.TEXT, Part.TITLE).outcomes == {"written": 1}
    assert (stored.content, stored.title) == (PLAIN, "Invoice 12")
    assert server.names(stored) == {"inbox", "penstock-done"}
    assert len(server.changes) == 1


def test_a_result_without_heading_keeps_the_title_and_one_without_text_the_text(
    server: PaperlessServer, flow: Flow, over: Callable[..., Run]
) -> None:
    flow.pages = {b"plain": ["only words"], b"empty": ["", "\n"]}
    plain, empty = server.add(b"plain", "penstock"), server.add(b"empty", "penstock")
    run = over(Part.TEXT, Part.TITLE)
    assert (plain.title, plain.content) == ("scan", "only words")
    assert empty.content == "old text"
    assert server.names(empty) == {"penstock-failed"}
    assert "no text was found in it" in notes(run)


def test_a_text_edited_during_the_conversion_stays(
    server: PaperlessServer, flow: Flow, records: Records, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    flow.before = lambda: setattr(stored, "content", "a user's words")
    assert over().outcomes == {"failed": 1}
    assert stored.content == "a user's words"
    assert server.names(stored) == {"penstock-failed"}
    assert "was edited in paperless" in record_of(stored, records).failed
    flow.before = lambda: None
    stored.tags = [server.tags["penstock"]]
    assert over().outcomes == {"written": 1}, "giving the tag again replaces the edit"
    assert stored.content == PLAIN


def test_a_text_edited_while_the_connector_was_down_stays(
    server: PaperlessServer, records: Records, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    taken = Paperless(server.url, TOKEN, 1_000_000).document(stored.id)
    assert taken is not None
    records.save(Record.of(taken))
    stored.content = "a user's words"
    assert over().outcomes == {"failed": 1}
    assert stored.content == "a user's words"


def test_a_file_replaced_during_the_conversion_is_taken_again(
    server: PaperlessServer, flow: Flow, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    flow.pages = {b"b": ["the new file"]}
    version = stored.id if server.release < 3 else 999
    flow.before = lambda: stored.files.update({version: (b"b", None)})
    assert over().outcomes == {"written": 1}
    assert [data for _, data in flow.submitted] == [b"a", b"b"]
    assert stored.content == "the new file"


def test_a_file_that_changes_again_and_again_is_left(
    server: PaperlessServer, flow: Flow, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    numbers = count()
    flow.before = lambda: stored.files.update({stored.id: (b"file %d" % next(numbers), None)})
    assert over().outcomes == {"left": 1}
    assert len(flow.submitted) == 2


def test_a_tag_removed_during_the_conversion_means_no_change(
    server: PaperlessServer, flow: Flow, records: Records, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    flow.before = stored.tags.clear
    assert over().outcomes == {"dropped": 1}
    assert not server.changes
    assert records.load(stored.id) is None


def test_a_deleted_document_is_dropped(server: PaperlessServer, flow: Flow, over: Callable[..., Run]) -> None:
    stored = server.add(b"a", "penstock")
    flow.before = lambda: setattr(stored, "visible", False)
    assert over().outcomes == {"dropped": 1}


def test_what_fails_says_why_once_and_not_again(
    server: PaperlessServer, flow: Flow, records: Records, over: Callable[..., Run]
) -> None:
    refused = server.add(b"bad", "penstock", "inbox")
    assert over().outcomes == {"failed": 1}
    assert server.names(refused) == {"inbox", "penstock-failed"}
    assert "not of a supported type" in record_of(refused, records).failed
    flow.status = "FAILED"
    failed = server.add(b"a", "penstock")
    assert "no page. `penstock documents pages" in notes(over())
    assert over().outcomes == {}
    flow.status = "COMPLETED"
    failed.tags = [server.tags["penstock"]]
    assert over().outcomes == {"written": 1}
    assert records.load(failed.id) is None


def test_a_paused_conversion_keeps_its_tag(server: PaperlessServer, flow: Flow, over: Callable[..., Run]) -> None:
    flow.status = "PAUSED"
    stored = server.add(b"a", "penstock")
    assert over().outcomes == {"left": 1}
    assert server.names(stored) == {"penstock"}


def test_values_that_paperless_refuses_fail_the_document(server: PaperlessServer, over: Callable[..., Run]) -> None:
    stored = server.add(b"a", "penstock")
    sent: list[object] = []

    def refuse(_: object) -> Response | None:
        sent.append(1)
        return Response('{"content": ["Too odd."]}', 400) if len(sent) == 1 else None

    with server.fault(f"PATCH /api/documents/{stored.id}/", refuse):
        run = over()
    assert run.outcomes == {"failed": 1}
    assert "Too odd." in notes(run)
    assert server.names(stored) == {"penstock-failed"}


@pytest.mark.parametrize("request_line", ["GET /api/documents/{}/download/", "PATCH /api/documents/{}/"])
def test_a_server_error_leaves_its_document_and_no_other(
    server: PaperlessServer, over: Callable[..., Run], request_line: str
) -> None:
    unlucky, other = server.add(b"a", "penstock"), server.add(b"b", "penstock")
    with server.fault(request_line.format(unlucky.id), lambda _: Response(status_code=500)):
        assert over().outcomes == {"left": 1, "written": 1}
    assert (server.names(unlucky), server.names(other)) == ({"penstock"}, {"penstock-done"})
    assert over().outcomes == {"written": 1}


def test_a_server_that_is_down_ends_the_run_after_three_requests(
    server: PaperlessServer, over: Callable[..., Run]
) -> None:
    for number in range(6):
        server.add(b"%d" % number, "penstock")
    with (
        server.fault("GET /api/documents/1", lambda _: Response(status_code=503)),
        pytest.raises(PaperlessError, match="answered with status 503") as caught,
    ):
        over()
    assert caught.value.is_down
    assert sum(line.startswith("GET /api/documents/1") for line in server.requests) == 3


def test_a_token_revoked_in_the_middle_ends_the_run_at_once(server: PaperlessServer, over: Callable[..., Run]) -> None:
    stored = server.add(b"a", "penstock")
    server.add(b"b", "penstock")
    with (
        server.fault(f"GET /api/documents/{stored.id}/", lambda _: Response(status_code=401)),
        pytest.raises(PaperlessError, match="refuses the token"),
    ):
        over()
    assert not server.changes


def test_records_of_documents_that_lost_their_tag_are_removed_unless_most_documents_are_gone(
    server: PaperlessServer, records: Records
) -> None:
    client = Paperless(server.url, TOKEN, 1_000_000)
    shown = server.add(b"shown").id
    for number, failed in ((shown, ""), (101, ""), (200, "no text")):
        records.save(Record(number, "a", "b", "c", failed=failed))
    assert "1 of 2" not in drop_lost(client, records, set(), accept_missing=False), "half of two may go"
    assert records.under_way() == set()
    for number in range(101, 106):
        records.save(Record(number, "a", "b", "c"))
    assert "5 of 5 documents under way are missing" in drop_lost(client, records, set(), accept_missing=False)
    assert len(records.under_way()) == 5
    drop_lost(client, records, set(), accept_missing=True)
    assert records.under_way() == set()
    assert records.load(200) is not None


def copies(server: PaperlessServer, data: bytes) -> int:
    """Return how often paperless has a file, as a version or as a document."""
    return sum(data == each for stored in server.documents.values() for each, _ in stored.files.values())


def test_a_searchable_pdf_becomes_a_version_or_a_document(
    server: PaperlessServer, records: Records, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock", "inbox", filename="../a b.pdf")
    assert over(Part.TEXT, Part.TITLE, Part.PDF).outcomes == {"written": 1}
    assert copies(server, b"searchable 0") == len(server.uploads) == 1
    assert server.uploads[0].filename.startswith("a b.penstock-")
    assert (stored.title, stored.content) == ("Invoice 12", PLAIN), "our text replaces what paperless read in our PDF"
    assert server.names(stored) == {"inbox", "penstock-done"}
    if server.release < 3:
        (made,) = [each for each in server.documents.values() if each is not stored]
        assert (made.title, server.names(made)) == ("Invoice 12", {"inbox", "penstock-done"})
    else:
        assert [label for _, label in stored.files.values()] == [None, "Penstock"]
    assert records.load(stored.id) is None
    assert not records.pdf(stored.id).exists()


@pytest.mark.parametrize("consumes", [True, False], ids=["consumed", "still waiting"])
@pytest.mark.parametrize("moment", ["before the answer", "after the answer", "before the tag moves"])
def test_a_kill_at_any_moment_uploads_once(
    server: PaperlessServer, over: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, moment: str, consumes: bool
) -> None:
    stored = server.add(b"a", "penstock")
    server.consumes = consumes or moment == "before the tag moves"
    upload, save = Paperless.upload, Records.save

    def killed_upload(*arguments: Any) -> str:
        upload(*arguments)
        raise KeyboardInterrupt

    def killed_save(self: Records, record: Record) -> None:
        save(self, record)
        if record.task:
            raise KeyboardInterrupt

    def killed_change(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "before the answer":
            patch.setattr(Paperless, "upload", killed_upload)
        elif moment == "after the answer":
            patch.setattr(Records, "save", killed_save)
        else:
            patch.setattr(Paperless, "change", killed_change)
        with pytest.raises(KeyboardInterrupt):
            over(Part.TEXT, Part.PDF)
    server.consumes = True
    assert over(Part.TEXT, Part.PDF).outcomes == {"written": 1}
    assert len(server.uploads) == 1
    assert stored.content == PLAIN
    assert server.names(stored) == {"penstock-done"}


def test_an_upload_whose_answer_is_lost_is_not_repeated(
    server: PaperlessServer, over: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(b"a", "penstock")
    upload = Paperless.upload

    def lost(*arguments: Any) -> str:
        upload(*arguments)
        raise PaperlessError("it did not answer", code="timeout")

    with monkeypatch.context() as patch:
        patch.setattr(Paperless, "upload", lost)
        assert over(Part.PDF).outcomes == {"left": 1}
    assert over(Part.PDF).outcomes == {"written": 1}
    assert len(server.uploads) == 1


def test_an_upload_that_never_arrived_is_repeated(
    server: PaperlessServer, records: Records, over: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = server.add(b"a", "penstock")
    with server.fault("POST /api/documents/", lambda _: Response(status_code=502)):
        assert over(Part.PDF).outcomes == {"left": 1}
    monkeypatch.setattr(runs, "UNSURE_S", 0.0)
    assert over(Part.PDF).outcomes == {"written": 1}
    assert copies(server, b"searchable 0") == 1
    assert records.load(stored.id) is None


def test_a_refused_pdf_fails_the_document_with_the_reason_of_paperless(
    server: PaperlessServer, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    server.refuses = "It is too old."
    run = over(Part.TEXT, Part.PDF)
    assert run.outcomes == {"failed": 1}
    assert "paperless refused the searchable PDF: It is too old." in notes(run)
    assert stored.content == "old text"


def test_a_pdf_that_paperless_does_not_consume_is_left(
    server: PaperlessServer, over: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(b"a", "penstock")
    server.consumes = False
    monkeypatch.setattr(runs, "PATIENCE_S", 0.1)
    run = over(Part.PDF)
    assert run.outcomes == {"left": 1}
    assert "has not consumed the searchable PDF yet" in notes(run)
    server.consumes = True
    assert over(Part.PDF).outcomes == {"written": 1}
    assert len(server.uploads) == 1


def test_a_file_that_needs_no_text_layer_is_not_uploaded(
    server: PaperlessServer, flow: Flow, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    flow.pdfs = iter([b""])
    assert over(Part.PDF).outcomes == {"written": 1}
    assert not server.uploads
    assert server.names(stored) == {"penstock-done"}


def test_a_tag_given_while_the_pdf_is_made_stays(server: PaperlessServer, flow: Flow, over: Callable[..., Run]) -> None:
    stored = server.add(b"a", "penstock")

    def made() -> Iterator[bytes]:
        stored.tags = [*stored.tags, server.tag("late")]
        yield b""

    flow.pdfs = made()
    assert over(Part.PDF).outcomes == {"written": 1}
    assert server.names(stored) == {"penstock-done", "late"}


def test_an_uploaded_pdf_that_a_workflow_tags_is_not_uploaded_again(
    server: PaperlessServer, flow: Flow, over: Callable[..., Run]
) -> None:
    stored = server.add(b"a", "penstock")
    over(Part.TEXT, Part.PDF)
    for each in server.documents.values():
        each.tags = [server.tags["penstock"]]
    flow.pdfs = iter([b"searchable 0"] * 2)
    assert over(Part.TEXT, Part.PDF).outcomes == {"written": len(server.documents)}
    assert len(server.uploads) == 1
    assert [data for _, data in flow.submitted].count(b"a") == 2, "the original is converted again, not our version"
    assert stored.content == PLAIN
