"""Any order of users' commands and of workers' acts, delays and deaths on one document."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select, text, update

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UserError
from pipeline.engine.work import Work
from pipeline.flows.documents import files, plan, service
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.models import ESCALATIONS, PAGES
from pipeline.flows.documents.plan import CPU
from pipeline.flows.documents.service import Choice
from pipeline.flows.documents.states import (
    AT_REST,
    DOCUMENT,
    PAGE,
    DocumentStatus,
    EscalationState,
    PageStatus,
    progress,
)
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import merge, split
from pipeline.flows.documents.work.document import MERGE, SPLIT, ClaimLost
from pipeline.flows.documents.work.page import Attempt, PageUnit
from pipeline.storage.context import Context
from tests.support.documents import CLAIMED_STAGES, Worker, attempts, bad, document, good, insert_document, pages
from tests.support.rotation import Rotation

pytestmark = pytest.mark.both_databases

D, P = DocumentStatus, PageStatus
WORKERS = ("w1", "w2", "w3")
MAX_ATTEMPTS = 3
STEPS = 40

AUDIT = "CREATE TABLE audit (kind TEXT, document TEXT, page INTEGER, before INTEGER, after INTEGER)"
NOTE = "INSERT INTO audit SELECT '{table}', NEW.{key}, {page}, OLD.status, NEW.status WHERE OLD.status <> NEW.status;"
TRIGGERS = {
    "sqlite": ["CREATE TRIGGER audit_{table} AFTER UPDATE ON {table} BEGIN %s END"],
    "postgresql": [
        "CREATE FUNCTION audit_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s RETURN NULL; END $$",
        "CREATE TRIGGER audit_{table} AFTER UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION audit_{table}()",
    ],
}
LEGAL_CHANGES: dict[str, set[tuple[int, int]]] = {
    "documents": {(before, after) for (before, _), after in DOCUMENT.legal.items()},
    "pages": {(before, after) for (before, _), after in PAGE.legal.items()},
}

outcomes = st.sampled_from(
    [
        "good",
        "doubtful",
        "doubtful",
        ErrorKind.PERMANENT,
        ErrorKind.TRANSIENT,
        ErrorKind.RATE_LIMITED,
        ErrorKind.CANCELLED,
    ]
)
workers = st.sampled_from(WORKERS)
queues = st.sampled_from([CPU, CPU, "vision.openai"])
choices = st.sampled_from([Choice(), Choice(), Choice("openai"), Choice("local")])
budgets = st.sampled_from(["", "0", "1p", "2p", "1.5", "2.5"])
costs = (0.1, 1.0)
"""A call costs at most 1, which its page has reserved."""
shifts = st.sampled_from([0, 0, 1000, -1000])
"""Seconds by which a claiming worker's clock differs: pages that wait become due, or the lease is over at once."""
late = st.sampled_from([0, 0, 1, 1, 2])
"""The number of stages between the claim and the late finish of a stage."""


class DocumentMachine(RuleBasedStateMachine):
    """One document. The machine remembers all claims, so that it can commit them late and twice."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.id = insert_document(context, D.PENDING, [])
        self.stages: list[Any] = []
        self.units: list[PageUnit] = []
        self.texts = 0
        self.contents: dict[int, str] = {}
        self.seen, self.failed = D.PENDING, 0

    @initialize(page_count=st.integers(0, 3), allow_partial=st.booleans())
    def begin(self, page_count: int, allow_partial: bool) -> None:
        service.revive(self.context, self.id, allow_partial=allow_partial)
        if page_count:
            self.do_next_stage("w1", page_count)

    # Users' commands.

    def command(self, act: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        before = self.everything()
        try:
            act(self.context, self.id, *arguments, **options)
        except UserError as error:
            note(f"refused: {error}")
            assert self.everything() == before, "a command that was refused changed something"

    @rule(command=st.sampled_from(["cancel", "pause", "resume", "retry", "retry_failed", "remerge", "revive"]))
    def ask_for(self, command: str) -> None:
        self.command(getattr(service, command))
        assert command != "cancel" or self.status is D.CANCELLED

    @precondition(lambda self: self.seen is D.PAUSED)
    @rule()
    def resume(self) -> None:
        self.command(service.resume)
        assert self.status is not D.PAUSED

    @precondition(lambda self: self.seen in AT_REST)
    @rule(choice=choices, fresh=st.booleans())
    def retry(self, choice: Choice, fresh: bool) -> None:
        self.command(service.retry, choice, fresh=fresh)

    @precondition(lambda self: self.contents)
    @rule(page=st.integers(1, 3), choice=choices)
    def retry_page(self, page: int, choice: Choice) -> None:
        self.command(service.retry_page, page, choice)

    @precondition(lambda self: self.failed)
    @rule(choice=choices)
    def retry_failed(self, choice: Choice) -> None:
        self.command(service.retry_failed, choice)

    @precondition(lambda self: self.contents or self.failed)
    @rule(budget=budgets, how=st.sampled_from(["escalate", "revive"]))
    def escalate(self, budget: str, how: str) -> None:
        if how == "escalate":
            self.command(service.escalate, "openai", budget)
        else:
            self.command(service.revive, escalate="openai", budget=budget)

    @precondition(lambda self: self.seen in AT_REST)
    @rule(allow_partial=st.booleans(), how=st.sampled_from([service.remerge, service.revive]))
    def repeat_merge(self, allow_partial: bool, how: Callable[..., Any]) -> None:
        self.command(how, allow_partial=allow_partial)

    @precondition(lambda self: self.contents and self.seen in AT_REST)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        tried = data.draw(st.sampled_from(attempts(self.context, self.id)))
        self.command(service.promote, tried.page, tried.id)

    # Workers' acts, which may come late, twice or never.

    def without_command(self, act: Callable[[], Any]) -> Any:
        """Act without a user's command, which must not change a CANCELLED document."""
        before = self.everything()
        result = act()
        if before[0].status == D.CANCELLED:
            assert (self.status, self.everything()[1]) == (D.CANCELLED, before[1])
        return result

    @rule(worker=workers, kind=st.sampled_from([SPLIT, MERGE]))
    def claim_stage(self, worker: str, kind: Work) -> None:
        owner = Owner(worker, f"{worker}-stage:0")
        claimed = self.without_command(lambda: stage.claim(self.context, kind, self.id, owner))
        if claimed:
            self.stages.append(claimed)

    @precondition(lambda self: self.seen in {D.PENDING, D.READY_TO_MERGE})
    @rule(worker=workers, page_count=st.integers(0, 3))
    def do_next_stage(self, worker: str, page_count: int) -> None:
        """Claim it, and finish it at once if `page_count` is given."""
        waits = self.status is D.PENDING
        self.claim_stage(worker, SPLIT if waits else MERGE)
        if page_count:
            self.commit_stage(self.stages[-1], page_count, fails=False)

    @precondition(lambda self: self.stages)
    @rule(back=late, page_count=st.integers(1, 3), fails=st.sampled_from([False, False, False, True]))
    def finish_stage(self, back: int, page_count: int, fails: bool) -> None:
        row = self.stages[-1 - min(back, len(self.stages) - 1)]
        holds = document(self.context, self.id).claim_id == row.claim_id
        try:
            self.without_command(lambda: self.commit_stage(row, page_count, fails))
        except ClaimLost:
            assert not holds
        else:
            assert holds or fails

    @precondition(lambda self: self.seen in CLAIMED_STAGES)
    @rule(worker=workers, page_count=st.integers(0, 3))
    def overtake_stage(self, worker: str, page_count: int) -> None:
        """Declare the claim's worker dead and let another start over; the first may come back later."""
        self.sweep(set(WORKERS))
        self.do_next_stage(worker, 0)
        if page_count:
            self.finish_stage(1, page_count, fails=False)

    def commit_stage(self, row: Any, page_count: int, fails: bool) -> None:
        if fails:
            stage.fail(self.context, MERGE if row.status == D.MERGING else SPLIT, row, UserError("it failed"))
        elif row.status == D.MERGING:
            merge.write_result(self.context, row)
        else:
            images: list[tuple[int, Path | None]] = [(number, None) for number in range(1, page_count + 1)]
            self.context.db.run(lambda tx: split.insert_pages(tx, row, images))

    @precondition(lambda self: self.seen in {D.PROCESSING, D.PAUSED})
    @rule(worker=workers, queue=queues, want=st.integers(1, 3), later_s=shifts)
    def claim_pages(self, worker: str, queue: str, want: int, later_s: float) -> None:
        lane = Worker(self.context, self.id, worker, queue)
        self.units += self.without_command(lambda: lane.claim(want, later_s))

    @precondition(lambda self: self.units)
    @rule(data=st.data(), worker=workers, want=st.integers(0, 2))
    def finish_pages(self, data: st.DataObject, worker: str, want: int) -> None:
        """Commit pages that were claimed together, or some of them."""
        claim = data.draw(st.sampled_from(self.units[-6:])).claim_id
        together = [unit for unit in self.units if unit.claim_id == claim]
        units = data.draw(st.lists(st.sampled_from(together), min_size=1, unique=True))
        results = [self.outcome(unit, data.draw(outcomes)) for unit in units]
        held = {(row.id, row.claim_id) for row in self.everything()[1]}
        expected = sum(
            (result.unit.id, result.unit.claim_id) in held and result.answer is not None for result in results
        )
        before = self.completions()
        done = self.without_command(lambda: Worker(self.context, self.id, worker).settle_and_claim(results, want))
        assert (self.completions() - before).total() == expected
        self.units += done.units if done else []

    def outcome(self, unit: PageUnit, kind: ErrorKind | str) -> Attempt:
        self.texts += 1
        paid: dict[str, Any] = {}
        if unit.provider == "openai":
            paid = {"call_id": f"call-{self.texts}", "cost": costs[self.texts % 2], "queue": "vision.openai"}
        text = f"text {self.texts}" + (" [illegible]" if kind == "doubtful" else "")
        return good(unit, text, **paid) if kind in {"good", "doubtful"} else bad(unit, ErrorKind(kind))

    @precondition(lambda self: self.seen is D.PROCESSING)
    @rule(worker=workers, queue=queues, kinds=st.lists(outcomes, min_size=1, max_size=3))
    def work_on(self, worker: str, queue: str, kinds: list[ErrorKind | str]) -> None:
        lane = Worker(self.context, self.id, worker, queue)
        units = lane.claim(len(kinds), later_s=1000)
        lane.settle(*(self.outcome(unit, kind) for unit, kind in zip(units, kinds, strict=False)))

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def release_untried(self, data: st.DataObject) -> None:
        unit = data.draw(st.sampled_from(self.units[-6:]))
        self.without_command(lambda: Worker(self.context, self.id, "w1").settle_and_claim(untried=[unit]))

    @rule(lost=st.sampled_from([set(), {"w1"}, set(WORKERS), set(WORKERS)]))
    def sweep(self, lost: set[str]) -> None:
        """Let workers die and leases end, and launch the waiting work."""
        self.without_command(lambda: FLOW.free_lost(self.context, lost))
        self.check_what_is_sent()

    @rule(worker=workers)
    def end_worker(self, worker: str) -> None:
        self.without_command(lambda: FLOW.release_all(self.context, [worker]))

    def check_what_is_sent(self) -> None:
        """The sweeper sends messages for claimable work, and for no other."""
        row, page_rows = self.everything()
        now = self.context.db.now()
        due = any(
            page.status in {P.PENDING, P.RETRYING} and (page.next_run_at is None or page.next_run_at <= now)
            for page in page_rows
        )
        wanted = row.status in {D.PENDING, D.READY_TO_MERGE} or (row.status == D.PROCESSING and due)
        assert [planned.document_id for planned in plan.stages(self.context, [self.id])] == [self.id] * wanted
        assert (self.id in plan.runnable(self.context, ())) == wanted

    # Invariants.

    @invariant()
    def keeps_its_promises(self) -> None:
        row, page_rows = self.everything()
        self.seen, self.failed = D(row.status), row.failed_count
        states = Counter(P(page.status) for page in page_rows)
        self.check_figures(row, len(page_rows), states)
        self.check_claims(row, page_rows)
        if row.status == D.COMPLETED:
            assert states[P.COMPLETED] == row.pages > 0
            assert files.output_path(self.context.settings, self.id, row.filename).read_text().startswith("<!-- Page 1")
        if row.status == D.PROCESSING:
            assert row.completed_count + row.failed_count < row.pages, "no message or sweep will continue the document"
        ledger = attempts(self.context, self.id)
        self.check_escalations(row, page_rows, ledger)
        self.check_texts(page_rows, ledger)
        self.check_audit(ledger)

    def check_figures(self, row: Any, page_count: int, states: Counter[PageStatus]) -> None:
        assert (row.pages, row.completed_count, row.failed_count) == (page_count, states[P.COMPLETED], states[P.FAILED])
        assert row.progress == progress(D(row.status), row.pages, row.completed_count, row.progress)
        assert (row.finished_at is not None) == (D(row.status) in AT_REST)

    def check_claims(self, row: Any, page_rows: Sequence[Any]) -> None:
        claimed = [page for page in page_rows if page.claim_id]
        assert claimed == [page for page in page_rows if page.status == P.PROCESSING]
        assert not claimed or row.status in {D.PROCESSING, D.PAUSED}
        assert (row.claim_id is not None) == (row.status in {D.SPLITTING, D.MERGING})
        assert 0 <= row.attempts <= MAX_ATTEMPTS
        for page in page_rows:
            assert 0 <= page.attempts <= MAX_ATTEMPTS
            assert page.attempts < MAX_ATTEMPTS or page.status not in {P.PENDING, P.RETRYING}

    def check_escalations(self, row: Any, page_rows: Sequence[Any], ledger: Sequence[Any]) -> None:
        with self.context.db.read() as session:
            rows = list(session.execute(select(ESCALATIONS).where(ESCALATIONS.c.document_id == self.id)))
        states = Counter(row.state for row in rows)
        opened = {row.page_id for row in rows if row.state == EscalationState.OPEN}
        under_way = {page.id for page in page_rows if page.status not in {P.COMPLETED, P.FAILED}}
        assert opened <= under_way
        assert opened or not states[EscalationState.WAITING], "pages wait for ever"
        assert not (opened or states[EscalationState.WAITING]) or row.status in {D.PROCESSING, D.PAUSED}
        reserved = sum(row.reserved for row in rows)
        assert reserved == sum(row.reserved for row in rows if row.page_id in opened), "reserved for nothing"
        if row.budget_cost is not None:
            lost = sum(tried.cost for tried in ledger if not tried.effective)
            assert row.escalated_cost + reserved <= row.budget_cost + lost + 1e-9
        if row.budget_pages is not None:
            assert row.escalated_pages <= row.budget_pages

    def check_texts(self, page_rows: Sequence[Any], ledger: Sequence[Any]) -> None:
        known = {(tried.page, tried.text) for tried in ledger}
        for page in page_rows:
            assert not page.content or (page.page, page.content) in known
            assert page.content or not self.contents.get(page.id), "a text was lost"
            assert page.content or page.status != P.COMPLETED
        self.contents = {page.id: page.content for page in page_rows if page.content}

    def check_audit(self, ledger: Sequence[Any]) -> None:
        for kind, before, after in self.audit("SELECT DISTINCT kind, before, after FROM audit WHERE document = :id"):
            assert (before, after) in LEGAL_CHANGES[kind], f"{kind}: {before} → {after}"
        effective = (tried.page for tried in ledger if tried.effective and tried.status == "completed")
        assert self.completions() == Counter(effective)

    # Helpers.

    def everything(self) -> tuple[Any, list[Any]]:
        return document(self.context, self.id), pages(self.context, self.id)

    @property
    def status(self) -> DocumentStatus:
        return D(document(self.context, self.id).status)

    def audit(self, query: str) -> list[Any]:
        with self.context.db.read() as session:
            return list(session.execute(text(query), {"id": self.id}))

    def completions(self) -> Counter[int]:
        """Count the completions of each page by work."""
        query = (
            "SELECT page, count(*) FROM audit"
            " WHERE kind = 'pages' AND document = :id AND before = 1 AND after = 2 GROUP BY page"
        )
        return Counter(dict(self.audit(query)))

    def teardown(self) -> None:
        """After any history, the document reaches its end if workers live and waits end."""
        if self.status is D.PAUSED:
            service.resume(self.context, self.id)
        FLOW.free_lost(self.context, set(WORKERS))
        for _ in range(20):
            self.context.db.run(lambda session: session.execute(update(PAGES).values(next_run_at=None)))
            due = plan.stages(self.context, [self.id])
            if not due:
                break
            self.run_stage(due[0].stage)
        row, page_rows = self.everything()
        assert D(row.status) in AT_REST
        assert D(row.status) is not D.PARTIAL_FAILED or row.completed_count < len(page_rows)
        self.keeps_its_promises()
        service.remove(self.context, self.id)
        assert Worker(self.context, self.id).settle_and_claim([good(unit) for unit in self.units[:1]]) is None

    def run_stage(self, due: plan.Stage) -> None:
        if due is plan.Stage.CONVERT:
            for lane in (Worker(self.context, self.id, "w1", queue) for queue in (CPU, "vision.openai")):
                while units := lane.claim(2):
                    lane.settle(*(self.outcome(unit, "good") for unit in units))
            return
        kind = SPLIT if due is plan.Stage.SPLIT else MERGE
        claimed = stage.claim(self.context, kind, self.id, Owner("w1", "last:0"))
        assert claimed is not None
        self.commit_stage(claimed, 2, fails=False)


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__OPENAI__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__OPENAI__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__OPENAI__API_KEY": "sk-1",
        "PENSTOCK_PROVIDERS__OPENAI__MAX_TOKENS": "1000",
        "PENSTOCK_PROVIDERS__OPENAI__PRICES": '{"*": {"output": 333.3333333333333}}',
        "PENSTOCK_DOCUMENTS__BACKOFF_S": "[5.0, 15.0]",
    }


@pytest.fixture
def audited(context: Context) -> Context:
    """A context whose database records every change of a state."""
    kind = "sqlite" if context.db.is_sqlite else "postgresql"
    columns = [("documents", "id", "0"), ("pages", "document_id", "NEW.page")]
    with context.db.transaction() as session:
        session.connection().exec_driver_sql(AUDIT)
        for table, key, page in columns:
            for statement in TRIGGERS[kind]:
                whole = statement.replace("%s", NOTE).format(table=table, key=key, page=page)
                session.connection().exec_driver_sql(whole)
    return context


@pytest.mark.slow
@pytest.mark.timeout(600)  # shrinking a failure takes up to five minutes
def test_a_document_keeps_its_promises_through_any_events_in_any_order(audited: Context, rotation: Rotation) -> None:
    examples = 30 if rotation.tests == "all" else 10
    bounds = settings(
        max_examples=examples if audited.db.is_sqlite else 4,
        stateful_step_count=STEPS,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    machine: Any = lambda: DocumentMachine(audited)  # noqa: E731
    run_state_machine_as_test(machine, settings=bounds)
