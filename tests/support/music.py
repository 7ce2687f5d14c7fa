"""Songs without a server, and a driver that runs the flow's messages one after another, here."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine import live_settings
from pipeline.engine.claims import Owner
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.flows.music import fulltext, plan, routes, service
from pipeline.flows.music.flow import FLOW
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.plan import BatchLaunch
from pipeline.flows.music.service import StartOptions
from pipeline.flows.music.states import Mode, PipelineState, Step
from pipeline.flows.music.work import selection, sync
from pipeline.flows.music.work.step import StepWork
from pipeline.providers import gates
from pipeline.storage.context import Context
from tests.support.provider_server import ProviderServer


def services(provider_url: str, server_url: str = "http://127.0.0.1:9", *, embeds: bool = False) -> dict[str, str]:
    """Return settings with an AI service, `ai`, and a music server. `embeds`: the service makes vectors, too."""
    vectors = {"PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER": "ai", "PENSTOCK_MUSIC__EMBEDDINGS_MODEL": "vectors"}
    return (vectors if embeds else {}) | {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": provider_url,
        "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
        "PENSTOCK_PROVIDERS__AI__MODEL": "writer",
        "PENSTOCK_MUSIC__PROVIDER": "ai",
        "PENSTOCK_MUSIC__SERVER_URL": server_url,
        "PENSTOCK_MUSIC__USER": "ann",
        "PENSTOCK_MUSIC__PASSWORD": "sesame",
    }


CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


def add_songs(context: Context, count: int, first: int = 1) -> None:
    """Insert pending songs, `Song 1` to `Song {count}`."""
    now = datetime.now(UTC)
    rows = [
        {
            "library": "server",
            "server_id": f"s{n}",
            "title": f"Song {n}",
            "artist": "Ann",
            "status": "PENDING",
            "seen_at": now,
            "created_at": now,
            "updated_at": now,
        }
        for n in range(first, first + count)
    ]

    def add(session: Session) -> None:
        session.execute(insert(SONGS), rows)
        ids = session.execute(select(SONGS.c.id).where(SONGS.c.server_id.in_([row["server_id"] for row in rows])))
        fulltext.index(session, list(ids.scalars()))

    context.db.run(add)


def change(context: Context, key: str, value: str) -> None:
    known = context.gates.live_settings
    context.db.run(lambda session: live_settings.change(session, known, key, value))
    gates.sync(context)


def calls(provider: ProviderServer, path: str) -> int:
    return sum(record.path == path for record in provider.records)


def states(context: Context) -> dict[str, str]:
    with context.db.read() as session:
        return {row.title: row.status for row in session.execute(select(SONGS).order_by(SONGS.c.id))}


def batch_rows(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(BATCHES).order_by(BATCHES.c.id)))


def add_run(context: Context, status: PipelineState, songs: int = 0) -> str:
    """Insert an active run in this state with new songs, each in a pending batch. Returns the run's id."""
    if songs:
        add_songs(context, songs)
    run_id = uuid4().hex

    def work(session: Tx) -> None:
        now = context.db.now()
        session.execute(insert(RUNS).values(id=run_id, status=status, active=1, created_at=now, updated_at=now))
        selection.make_batches(session, run_id, list(session.execute(select(SONGS.c.id)).scalars()), Mode.FULL, 1)

    context.db.run(work)
    return run_id


class Driver:
    """Does the workers' part, one message at a time."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.steps: list[tuple[int, Step]] = []

    def start(self, mode: Mode = Mode.FULL, **options: bool | int) -> str:
        gates.sync(self.context)
        return service.start(self.context, StartOptions(mode, skip_sync=True, **options)).id  # type: ignore[arg-type]

    def step(self, batch_id: int, mode: Mode, step: Step, worker: str = "w", queue: str = "") -> Settled:
        """Handle one message of a batch, from `queue` or the step's own queue."""
        queue = queue or routes.queue_of(self.context.settings, mode, step)
        holder = uuid4().hex
        guarded = gates.guarded_call(self.context, queue, holder)
        act: Callable[[StepWork], Settled] = {
            Step.METADATA: StepWork.metadata,
            Step.REPAIR: StepWork.metadata,
            Step.EMBED: StepWork.embed,
            Step.SAVE: StepWork.save,
        }[step]
        self.steps.append((batch_id, step))
        with StepWork(self.context, batch_id, Owner(worker, f"{holder}:0"), guarded) as work:
            return act(work)

    def chain(self, batch: BatchLaunch) -> None:
        """Handle a batch's whole chain of messages."""
        order = [Step.METADATA, Step.EMBED, Step.SAVE]
        first = Step.METADATA if batch.step is Step.REPAIR else batch.step
        for step in order[order.index(first) :]:
            if step is Step.EMBED and batch.mode is Mode.METADATA:
                continue
            queue = batch.queue if step is first else ""
            if not self.step(batch.id, batch.mode, step, queue=queue).requeue:
                return

    def run(self, run_id: str, launches: int = 100) -> None:
        """Handle everything that is due, until the run has ended or waits."""
        for _ in range(launches):
            due = plan.plan(self.context, run_id)
            if due.sync:
                sync.sync_run(self.context, run_id, Owner("w", uuid4().hex))
            if due.enqueue:
                selection.enqueue(self.context, run_id)
            for batch in due.batches:
                self.chain(batch)
            if not (due.sync or due.enqueue or due.batches):
                return

    def skip_waits(self) -> None:
        """End every wait."""
        self.context.db.run(lambda session: session.execute(update(BATCHES).values(next_run_at=None)))

    def lose_worker(self, worker: str) -> None:
        """Release the claims of a dead worker, like the sweeper."""
        FLOW.free_lost(self.context, {worker})
