"""Scopes and charges of the documents' operations: one matrix for REST, console, MCP, commands and Python."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any
from uuid import uuid4

import pytest

from pipeline.engine import traces
from pipeline.engine.accounts import CALLER, OverCap
from pipeline.engine.errors import UserError
from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.submission import Options
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Verb
from pipeline.operations.quotas import Quotas
from pipeline.operations.refusal import Refused
from pipeline.storage import installation
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.support.calls import call_row
from tests.support.documents import document, insert_document
from tests.support.samples import text_pdf

D, C, F = DocumentStatus, PageStatus.COMPLETED, PageStatus.FAILED
PAGES = 5
"""The number of pages that a caller may convert in a day."""
KEY = "key-1"


@pytest.fixture
def settings_env() -> dict[str, str]:
    own = "PENSTOCK_PROVIDERS__OPENAI__"
    prices = '{"dear": {"input": 9}, "*": {"input": 1}}'
    quotas = {"PENSTOCK_API__PAGES_PER_DAY": str(PAGES), "PENSTOCK_API__SPEND_PER_DAY": "1"}
    return {f"{own}API_KEY": "x", f"{own}MODEL": "small", f"{own}PRICES": prices, **quotas}


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    return text_pdf(tmp_path / "report.pdf", [["first"], ["second"]])


def caller(context: Context, scope: Scope | None = Scope.WRITE) -> Caller:
    return Caller(context, KEY, "mine", scope, has_key=scope is not None, quotas=Quotas(context))


def submit(by: Caller, pdf: Path, **options: Any) -> documents.Document:
    folder = by.context.settings.upload_dir
    installation.check(by.context.db, by.context.settings)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"incoming-{uuid4().hex}"
    copyfile(pdf, copy)
    return documents.submit_upload.by(by, copy, "report.pdf", Options(**options))


def spent(context: Context, cost: float) -> None:
    """Record a request of the caller that cost this much."""
    document_id = insert_document(context, D.PARTIAL_FAILED, [C, F])
    token = CALLER.set(KEY)  # like an interface
    documents.retry_failed.by(caller(context), document_id)
    CALLER.reset(token)
    row = call_row("openai", context.db.now(), scope_id=document_id, cost=cost, call_id=uuid4().hex)
    context.db.run(lambda session: traces.record(session, row))


@dataclass(frozen=True)
class Row:
    """An operation: the state of its document, the pages that it charges, and whether it spends."""

    act: Callable[[Caller, str], Any]
    status: DocumentStatus = D.PARTIAL_FAILED
    pages: int = 0
    spends: bool = False


MATRIX: dict[str, Row] = {
    "cancel": Row(documents.cancel.by, status=D.PROCESSING),
    "pause": Row(documents.pause.by, status=D.PROCESSING),
    "resume": Row(documents.resume.by, status=D.PAUSED, spends=True),
    "retry": Row(documents.retry.by, pages=2, spends=True),
    "retry_failed": Row(documents.retry_failed.by, pages=1, spends=True),
    "retry_page": Row(lambda by, document_id: documents.retry_page.by(by, document_id, 1), pages=1, spends=True),
    "remerge": Row(lambda by, document_id: documents.remerge.by(by, document_id, allow_partial=True)),
    "delete": Row(documents.delete.by),
    "act: cancel": Row(lambda by, document_id: documents.act.by(by, Verb.CANCEL, [document_id]), status=D.PROCESSING),
    "act: retry": Row(lambda by, document_id: documents.act.by(by, Verb.RETRY, [document_id]), pages=2, spends=True),
    "status": Row(documents.status.by),
    "several": Row(lambda by, document_id: documents.several.by(by, [document_id])),
    "list": Row(lambda by, _: documents.list_documents.by(by)),
    "count": Row(lambda by, _: documents.count_documents.by(by, Filter())),
    "page": Row(lambda by, document_id: documents.page.by(by, document_id, 1)),
    "attempts": Row(documents.attempts.by),
    "layout": Row(documents.layout.by),
    "search": Row(lambda by, _: documents.search.by(by, "text")),
}


@pytest.fixture(params=MATRIX)
def row(request: pytest.FixtureRequest) -> Row:
    return MATRIX[request.param]


def insert_row(context: Context, row: Row) -> str:
    return insert_document(context, row.status, [C, F])


def test_a_caller_over_the_cap_starts_nothing_that_costs_money(context: Context, row: Row) -> None:
    spent(context, 1.25)
    document_id = insert_row(context, row)
    if not row.spends:
        row.act(caller(context), document_id)
        return
    with pytest.raises(OverCap, match=r"1\.25"):
        row.act(caller(context), document_id)
    assert document(context, document_id).status == row.status
    row.act(Caller(context), document_id)  # no account pays for the owner of this machine


def test_retried_pages_are_charged_when_they_are_accepted(context: Context, row: Row) -> None:
    document_id, by, quotas = insert_row(context, row), caller(context), Quotas(context)
    quotas.take_pages(KEY, PAGES - row.pages)
    if row.pages:
        quotas.take_pages(KEY, 1)
        with suppress(Refused):  # a bulk action skips the document with this reason
            row.act(by, document_id)
        assert document(context, document_id).status == row.status
        quotas.take_pages(KEY, -1)
    row.act(by, document_id)
    assert not row.pages or document(context, document_id).status != row.status
    with pytest.raises(Refused, match="5 pages in a day"):
        quotas.take_pages(KEY, 1)


def test_an_upload_is_charged_by_its_pages_and_gives_them_back_if_it_is_refused(context: Context, pdf: Path) -> None:
    by = caller(context)
    with pytest.raises(Refused) as error:
        submit(caller(context, Scope.READ), pdf)
    assert error.value.code == "forbidden"
    with pytest.raises(UserError) as unfit:
        submit(by, pdf, page_range="9")
    assert unfit.value.code == "page_range"
    for _ in range(2):
        submit(by, pdf, fresh=True)
    with pytest.raises(Refused) as error:
        submit(by, pdf, fresh=True)
    assert error.value.code == "quota"
    submit(by, pdf, fresh=True, page_range="1")


def test_each_file_that_inspection_refuses_costs_a_page(context: Context, tmp_path: Path) -> None:
    by, damaged = caller(context), tmp_path / "damaged.docx"
    damaged.write_bytes(b"PK\3\4" + bytes(100))
    for code in [*["corrupt"] * PAGES, "quota"]:
        with pytest.raises(UserError) as refused:
            submit(by, damaged)
        assert refused.value.code == code


def test_only_administrators_choose_models_that_the_configuration_does_not_name(context: Context, pdf: Path) -> None:
    writer, admin = caller(context), caller(context, Scope.ADMIN)
    document_id = insert_document(context, D.PARTIAL_FAILED, [C, F], "openai")
    chosen = {"provider": "openai", "model": "o9-most-expensive"}
    for act in (
        lambda by: submit(by, pdf, **chosen),
        lambda by: documents.retry.by(by, document_id, model="o9"),
        lambda by: documents.retry_failed.by(by, document_id, model="o9"),
        lambda by: documents.retry_page.by(by, document_id, 2, model="o9"),
    ):
        with pytest.raises(Refused) as error:
            act(writer)
        assert error.value.code == "unknown_model"
    for model in ("small", "dear"):
        assert submit(writer, pdf, provider="openai", model=model, page_range="1").model == model
    assert submit(admin, pdf, **chosen).model == "o9-most-expensive"


def test_a_bulk_action_acts_on_each_document_and_says_why_it_skips_one(context: Context) -> None:
    waits, done = insert_document(context, D.PENDING, []), insert_document(context, D.COMPLETED, [C])
    broken, partly = insert_document(context, D.FAILED, []), insert_document(context, D.PARTIAL_FAILED, [C, F])
    by = caller(context)
    count, skipped = documents.act.by(by, Verb.PAUSE, [waits, done, "0" * 16])
    assert (count, [entry.id for entry in skipped]) == (1, [done, "0" * 16])
    assert document(context, waits).paused_by == "mine"
    assert documents.act.by(by, Verb.REMERGE, [partly])[1][0].id == partly
    assert documents.act.by(by, Verb.REMERGE, [partly], allow_partial=True) == (1, [])
    assert documents.act.by(by, Verb.RETRY_FAILED, [broken]) == (1, []), "a document that failed as a whole starts anew"
    states = [document(context, document_id).status for document_id in (waits, done, broken, partly)]
    assert states == [D.PAUSED, D.COMPLETED, D.PENDING, D.READY_TO_MERGE]
