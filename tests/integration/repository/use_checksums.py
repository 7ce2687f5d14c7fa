"""Uses the flow of docs/how-to/adding-a-flow.md, in a copy of the tree that has it: `use_checksums.py FILE MISSING`."""

# mypy: disable-error-code="import-untyped,import-not-found"

import json
import sys
from datetime import UTC, datetime
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from celery.contrib.testing.worker import start_worker
from pipeline.flows.checksums.models import CHECKSUMS
from pipeline.flows.checksums.states import Status
from sqlalchemy import insert, select
from tasks.checksums import submit
from tasks.checksums.canvas import TASKS

from pipeline.engine import outbox
from pipeline.engine.claims import Owner, new_claim
from pipeline.engine.tables import Base
from pipeline.flows import flows
from pipeline.process import get_context
from pipeline.storage.schema import migrate
from tasks.app import app
from tests.support.waiting import wait_until

context = get_context()


def row(checksum_id: str) -> Any:
    with context.db.read() as session:
        return session.execute(select(CHECKSUMS).where(CHECKSUMS.c.id == checksum_id)).one()


def event_types(checksum_id: str) -> list[str]:
    with context.db.read() as session:
        return [event.type for event in outbox.after(session, 0, 100) if event.scope_id == checksum_id]


def main(file: str, missing: str) -> None:
    """Print the outcome of an existing file, of a missing file, and of a file that a dead worker holds."""
    migrate(context.db)
    now = datetime.now(UTC)
    held = {"status": Status.RUNNING, "attempts": 1, **new_claim(Owner("dead", "delivery"), now, 60).columns}
    with context.db.transaction() as session:
        session.execute(insert(CHECKSUMS).values(id="held", path=file, updated_at=now, **held))
    flow = next(flow for flow in flows() if flow.name == "checksums")
    holders = flow.holders(context)
    done, absent = submit(file), submit(missing)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        wait_until(lambda: row(done).status == Status.DONE and row(absent).error, 60, "the worker has done its work")
        TASKS.sweep({"dead"})
        wait_until(lambda: row("held").status == Status.DONE, 60, "another worker completed the dead worker's unit")
    with context.db.engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    report = {
        "differences": [str(change) for change in differences if "checksums" in str(change)],
        "holders": sorted(holders),
        "figures": flow.figures(context),
        "results": [row(done).result, row("held").result],
        "attempts": row("held").attempts,
        "waits": row(absent).next_run_at is not None,
        "events": event_types(done),
        "claims": [row(name).claim_id for name in (done, absent, "held")],
    }
    sys.stdout.write(json.dumps(report))


main(*sys.argv[1:])
