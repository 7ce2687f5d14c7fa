"""With a million pages, no statement of sweeps, claims, status and lists scans a whole large table."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event

from pipeline.engine import work as kernel
from pipeline.engine.claims import Owner
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Outcome
from pipeline.flows import flows
from pipeline.flows.documents import catalog, queries, reasons, search
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.providers import calls, queue_control
from pipeline.providers.calls import By, CallFilter
from pipeline.storage.context import Context
from tasks.flow import all_flow_tasks
from tasks.maintenance import sweep
from tests.support.many_pages import Shape, document_id, fill
from tests.support.works import works

pytestmark = pytest.mark.both_databases

LARGE = ("pages", "documents", "page_attempts", "ai_calls")
SUMS = re.compile(
    r"SELECT (documents\.status, count|sum\(documents\.).* FROM documents( GROUP BY documents\.status)?", re.DOTALL
)
"""`penstock status` counts all documents: they are about a hundredth of the pages."""
WAITING = document_id(1)
OWNER = Owner("w:1:a", "m1")


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {f"PENSTOCK_PROVIDERS__ONE__{name}": value for name, value in (("MODEL", "m"), ("API_KEY", "k"))}


@contextmanager
def _recorded(context: Context) -> Iterator[list[tuple[str, Any]]]:
    """Record the statements that read or change rows, with their parameters."""
    statements: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, executemany: bool) -> None:
        if statement.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            statements.append((statement, parameters[0] if executemany else parameters))

    event.listen(context.db.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(context.db.engine, "before_cursor_execute", note)


def _claims(context: Context) -> None:
    """Claim and settle a page; free lost pages, release others, and list the holders."""
    page = works()["documents.page"]

    def hop(tx: Tx) -> None:
        document = page.lock(tx, WAITING)
        rows = kernel.claim(tx, page, document, OWNER, page.table.c.provider == "one", limit=8)
        kernel.settle(tx, page, document, *map(Outcome, rows))
        kernel.give_back_earlier(tx, page, document, OWNER)

    context.db.run(hop)
    for each in works().values():
        kernel.free_lost(context.db, each, {"w:1:a"})
        kernel.release(context.db, each, {"w:1:a"})
        with context.db.read() as session:
            kernel.holders(session, each)
            kernel.next_due(session, each)


def _sweeps(_: Context) -> None:
    sweep()
    for tasks in all_flow_tasks():
        tasks.tend()


def _status(context: Context) -> None:
    for flow in flows():
        flow.figures(context)
    queries.figures(context)


def _lists(context: Context) -> None:
    newest = catalog.documents(context, limit=50)
    key = newest[-1].created_at, newest[-1].id
    for status in DocumentStatus:
        catalog.documents(context, catalog.Filter(frozenset({status})), limit=50, offset=10)
    for which in (catalog.Filter(), catalog.Filter(frozenset(DocumentStatus))):
        catalog.documents(context, which, after=key)
        catalog.documents(context, which, before=key)
    catalog.count_by_status(context, catalog.Filter())
    reasons.reasons(context, newest)
    queries.document(context, WAITING)
    queries.documents_by_id(context, [WAITING, document_id(2)])
    queries.resolve(context, WAITING)
    for page in PageStatus:
        queries.pages(context, WAITING, status=page)
    queries.attempts(context, WAITING, 3)
    search.search(context, "invoice march", catalog.Filter())
    FLOW.catch_up(context)
    recent = CallFilter(since=context.db.now() - timedelta(hours=1))
    calls.calls(context, limit=50)
    calls.calls(context, recent, limit=50)
    calls.stats(context, recent, By.PROVIDER)


ACTS: dict[str, Callable[[Context], None]] = {"claims": _claims, "sweep": _sweeps, "status": _status, "lists": _lists}


@pytest.mark.slow
def test_no_recurring_statement_scans_a_large_table(context: Context) -> None:
    fill(context.db, Shape(provider="one", open=3))
    queue_control.pause(context, "vision.one", None)
    scans = []
    for name, act in ACTS.items():
        with _recorded(context) as statements:
            act(context)
        assert statements, f"{name} ran no statement"
        for statement, parameters in dict.fromkeys((sql, _hashable(values)) for sql, values in statements):
            plan = _plan(context, statement, parameters)
            scans += [f"{name}: {line}\n    {statement}" for line in _scans(plan, statement)]
    assert not scans, "\n".join(dict.fromkeys(scans))


def _hashable(parameters: Any) -> Any:
    return tuple(parameters.items()) if isinstance(parameters, dict) else tuple(parameters)


def _plan(context: Context, statement: str, parameters: Any) -> list[str]:
    explain = "EXPLAIN QUERY PLAN" if context.db.is_sqlite else "EXPLAIN"
    values = parameters if context.db.is_sqlite else dict(parameters)
    with context.db.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {statement}", values).all()
        connection.rollback()
    return [str(row[-1]) for row in rows]


def _scans(plan: list[str], statement: str) -> Iterator[str]:
    """Yield the plan's lines that scan a whole large table, or an index of all its rows.

    Two scans are allowed: a list reads an index in order and ends early, and an index of the few rows that are held,
    claimable, waiting or not indexed yet is short.
    """
    # EXISTS ends at the first row, and PostgreSQL estimates from its statistics whether there are many.
    if SUMS.fullmatch(statement.replace("\n", "")) or statement.startswith("SELECT (EXISTS"):
        return
    ends_early = "LIMIT" in statement
    for line, following in pairwise([*plan, ""]):
        match = re.search(r"(SCAN|Seq Scan on|Index .*Scan using (?P<index>\S+) on) (?P<table>\w+)", line)
        if not match or match["table"] not in LARGE:
            continue
        index = match["index"] or next(iter(re.findall(r"USING (?:COVERING )?INDEX (\S+)", line)), "")
        few = index.endswith(("_claimed", "_claimable", "_next_run_at", "_unindexed"))
        if not index or not (few or ends_early or "Index Cond" in following):
            yield line.strip()
