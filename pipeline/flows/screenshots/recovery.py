"""What the sweeper does for screenshots: claims of workers that are gone or ending are given back."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import structlog
from sqlalchemy import ColumnElement, Table, and_, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, lost
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS
from pipeline.flows.screenshots.plan import merge_places
from pipeline.flows.screenshots.states import BATCH, NODE, SHARD, WorkEvent
from pipeline.flows.screenshots.work import retry
from pipeline.flows.screenshots.work.retry import WorkMachine
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
CLAIMED: tuple[tuple[WorkMachine, Table], ...] = ((BATCH, BATCHES), (SHARD, SHARDS), (NODE, NODES))


def release_lost(context: Context, absent: set[str]) -> int:
    """Give back what absent workers hold or what is beyond its lease, or give it up if its attempts are spent."""
    now = datetime.now(UTC)
    # Asked before a transaction that writes: usually there is nothing to free.
    with context.db.read() as session:
        queries = (select(table.c.id).where(lost(table, now, absent)).limit(1) for _, table in CLAIMED)
        if not any(session.execute(query).first() for query in queries):
            return 0
    rules = retry.policy(context.settings.screenshots)

    def work(session: Session) -> int:
        now = datetime.now(UTC)
        which = {table: lost(table, now, absent) for _, table in CLAIMED}
        _forget_messages(session, which)
        return sum(retry.release_lost(session, machine, table, which[table], rules, now) for machine, table in CLAIMED)

    freed = context.db.run(work)
    if freed:
        # Messages of lost workers may be among them: the others take their places again. Not so for vectors, which
        # nobody claims: whoever makes them may live, and be in a call that is paid for.
        merge_places(context).clear()
    log.warning("screenshots.given_back", claims=freed)
    return freed


def release_workers(context: Context, worker_ids: Iterable[str]) -> None:
    """Give back everything that workers which are ending still hold; no attempt is counted."""
    ids = list(worker_ids)

    def work(session: Session) -> None:
        which = {table: and_(table.c.worker_id.in_(ids), table.c.claim_id.is_not(None)) for _, table in CLAIMED}
        _forget_messages(session, which)
        for machine, table in CLAIMED:
            values = {**FREE, "attempts": table.c.attempts - 1, "next_run_at": None, "updated_at": datetime.now(UTC)}
            machine.move(session, table, WorkEvent.GIVE_BACK, which[table], **values)

    context.db.run(work, patience_s=5)


def _forget_messages(session: Session, which: Mapping[Table, ColumnElement[bool]]) -> None:
    """The messages of these batches are gone with their workers."""
    concerned = or_(which[BATCHES], BATCHES.c.id.in_(select(SHARDS.c.batch_id).where(which[SHARDS])))
    # The batches' rows first, in order, as everybody does who locks both.
    found = select(BATCHES.c.id).where(concerned).order_by(BATCHES.c.id).with_for_update()
    ids = session.execute(found).scalars().all()
    session.execute(update(BATCHES).where(BATCHES.c.id.in_(ids)).values(launches=0, launch_due_at=None))
