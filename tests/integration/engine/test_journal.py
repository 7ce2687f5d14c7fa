"""Log lines about claims, changed states and work that the sweeper gives back."""

import logging
from collections.abc import Iterator
from typing import cast

import pytest
import structlog

from pipeline.engine import work as kernel
from pipeline.engine.claims import Owner
from pipeline.engine.logs import configure, sign
from pipeline.engine.transaction import Tx
from pipeline.flows.documents.flow import FLOW
from pipeline.storage.context import Context
from tests.support.works import FACTORIES, works

pytestmark = pytest.mark.both_databases

ONE = Owner("cpu@host:1:a", "m1")
WORK = works()["documents.page"]


@pytest.fixture
def level() -> str:
    return "DEBUG"


class Written(logging.Handler):
    """A log handler; `lines` returns the lines since its last call."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(cast("dict[str, object]", record.msg))

    def lines(self) -> list[dict[str, object]]:
        lines, self._lines = self._lines, []
        assert {line["worker"] for line in lines} <= {ONE.worker_id}
        return [{name: value for name, value in line.items() if name not in {"timestamp", "worker"}} for line in lines]


@pytest.fixture
def journal(level: str) -> Iterator[Written]:
    root, own = logging.getLogger(), logging.getLogger("pipeline")
    before, configured = (root.handlers[:], root.level, own.level), structlog.get_config()
    configure("WARNING", as_json=True)
    written = Written()
    own.addHandler(written)
    own.setLevel(level)
    sign(lambda: {"worker": ONE.worker_id})
    yield written
    sign(dict)
    own.removeHandler(written)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])
    structlog.configure(**configured)


def test_claims_and_freed_claims_are_logged_after_their_commit(context: Context, journal: Written) -> None:
    units = FACTORIES["documents.page"](context, 3)

    def claim(tx: Tx) -> list[str]:
        rows = kernel.claim(tx, WORK, WORK.lock(tx, units.scope), ONE, limit=2)
        assert not journal.lines(), "logged before the commit"
        return [str(row.id) for row in rows]

    journal.lines()
    ids = context.db.run(claim)
    moved, claimed = journal.lines()
    assert moved["event"] == "state.changed"
    assert (moved["kind"], moved["cause"], moved["from"], moved["to"]) == (
        "page",
        "claim",
        "PENDING|RETRYING",
        "PROCESSING",
    )
    assert claimed == {
        "event": "unit.claimed",
        "level": "debug",
        "work": "page",
        "scope": units.scope,
        "page": [1, 2],
        "ids": ids,
        "count": 2,
    }
    assert FLOW.free_lost(context, {ONE.worker_id}) == 1
    *_, given_back = journal.lines()
    assert given_back == {
        "event": "claims.given_back",
        "level": "warning",
        "flow": "documents",
        "work": "page",
        "stuck": {"PROCESSING": 2},
        "scopes": [units.scope],
    }


@pytest.mark.parametrize("level", ["INFO"])
def test_the_level_info_logs_only_followed_rows(context: Context, journal: Written) -> None:
    works_ = {name: work for name, work in works().items() if name in {"documents.page", "documents.split"}}
    for name, work in works_.items():
        units = FACTORIES[name](context, 1)
        journal.lines()

        def claim(tx: Tx, work: kernel.Work = work, scope: str = units.scope) -> object:
            return kernel.claim(tx, work, work.lock(tx, scope), ONE)

        context.db.run(claim)
        changes = [(line["kind"], line["from"], line["to"], line["id"]) for line in journal.lines()]
        assert changes == ([] if name == "documents.page" else [("document", "PENDING", "SPLITTING", units.scope)])
