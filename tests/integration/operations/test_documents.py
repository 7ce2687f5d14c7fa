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
"""How many pages a caller may have converted in a day."""
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
    """The caller asked for something that cost so much."""
    mine = insert_document(context, D.PARTIAL_FAILED, [C, F])
    token = CALLER.set(KEY)  # as an interface does
    documents.retry_failed.by(caller(context), mine)
    CALLER.reset(token)
    row = call_row("openai", context.db.now(), scope_id=mine, cost=cost, call_id=uuid4().hex)
    context.db.run(lambda session: traces.record(session, row))


@dataclass(frozen=True)
class Row:
    """An operation: on a document in which state, how many pages it charges, and whether it spends."""

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
    "retry_page": Row(lambda by, one: documents.retry_page.by(by, one, 1), pages=1, spends=True),
    "remerge": Row(lambda by, one: documents.remerge.by(by, one, allow_partial=True)),
    "delete": Row(documents.delete.by),
    "act: cancel": Row(lambda by, one: documents.act.by(by, Verb.CANCEL, [one]), status=D.PROCESSING),
    "act: retry": Row(lambda by, one: documents.act.by(by, Verb.RETRY, [one]), pages=2, spends=True),
    "status": Row(documents.status.by),
    "several": Row(lambda by, one: documents.several.by(by, [one])),
    "list": Row(lambda by, _: documents.list_documents.by(by)),
    "count": Row(lambda by, _: documents.count_documents.by(by, Filter())),
    "page": Row(lambda by, one: documents.page.by(by, one, 1)),
    "attempts": Row(documents.attempts.by),
    "layout": Row(documents.layout.by),
    "search": Row(lambda by, _: documents.search.by(by, "text")),
}


@pytest.fixture(params=MATRIX)
def row(request: pytest.FixtureRequest) -> Row:
    return MATRIX[request.param]


def made(context: Context, row: Row) -> str:
    return insert_document(context, row.status, [C, F])


def test_who_has_spent_enough_begins_nothing_that_costs_money(context: Context, row: Row) -> None:
    spent(context, 1.25)
    mine = made(context, row)
    if not row.spends:
        row.act(caller(context), mine)
        return
    with pytest.raises(OverCap, match=r"1\.25"):
        row.act(caller(context), mine)
    assert document(context, mine).status == row.status
    row.act(Caller(context), mine)  # for the owner of this machine, no account pays


def test_pages_that_are_converted_again_are_charged_once_they_are_accepted(context: Context, row: Row) -> None:
    mine, by, quotas = made(context, row), caller(context), Quotas(context)
    quotas.take_pages(KEY, PAGES - row.pages)
    if row.pages:
        quotas.take_pages(KEY, 1)
        with suppress(Refused):  # with many documents, it is the reason why one is skipped
            row.act(by, mine)
        assert document(context, mine).status == row.status
        quotas.give_back_pages(KEY, 1)
    row.act(by, mine)
    assert not row.pages or document(context, mine).status != row.status
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


def test_only_models_that_the_configuration_names_unless_an_administrator_asks(context: Context, pdf: Path) -> None:
    writer, admin = caller(context), caller(context, Scope.ADMIN)
    mine = insert_document(context, D.PARTIAL_FAILED, [C, F], "openai")
    chosen = {"provider": "openai", "model": "o9-most-expensive"}
    for act in (
        lambda by: submit(by, pdf, **chosen),
        lambda by: documents.retry.by(by, mine, model="o9"),
        lambda by: documents.retry_failed.by(by, mine, model="o9"),
        lambda by: documents.retry_page.by(by, mine, 2, model="o9"),
    ):
        with pytest.raises(Refused) as error:
            act(writer)
        assert error.value.code == "unknown_model"
    for model in ("small", "dear"):
        assert submit(writer, pdf, provider="openai", model=model, page_range="1").model == model
    assert submit(admin, pdf, **chosen).model == "o9-most-expensive"


def test_many_are_acted_on_one_by_one_and_what_cannot_be_says_why(context: Context) -> None:
    waits, done = insert_document(context, D.PENDING, []), insert_document(context, D.COMPLETED, [C])
    broken, partly = insert_document(context, D.FAILED, []), insert_document(context, D.PARTIAL_FAILED, [C, F])
    by = caller(context)
    count, skipped = documents.act.by(by, Verb.PAUSE, [waits, done, "0" * 16])
    assert (count, [one.id for one in skipped]) == (1, [done, "0" * 16])
    assert document(context, waits).paused_by == "mine"
    assert documents.act.by(by, Verb.REMERGE, [partly])[1][0].id == partly
    assert documents.act.by(by, Verb.REMERGE, [partly], allow_partial=True) == (1, [])
    assert documents.act.by(by, Verb.RETRY_FAILED, [broken]) == (1, []), "what failed as a whole begins anew"
    states = [document(context, one).status for one in (waits, done, broken, partly)]
    assert states == [D.PAUSED, D.COMPLETED, D.PENDING, D.READY_TO_MERGE]
