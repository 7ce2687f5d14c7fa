"""Estimates the cost of analysing frames, and finds the work that may still cost something."""

from collections.abc import Collection

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from pipeline.engine.accounts import Part
from pipeline.engine.transaction import ReadTx
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.providers import call_cost

_FRAME = "frame:"
_OPEN = [WorkStatus.PENDING, WorkStatus.FAILED, WorkStatus.RUNNING]


def frame(shot_id: int) -> str:
    """Return the name under which an account reserves cost for a frame without a batch. Once it has one, the name is
    the batch's id."""
    return f"{_FRAME}{shot_id}"


def of_frames(tx: ReadTx, count: int) -> list[Part]:
    """Estimate the cost of analysing `count` frames, as if each were a batch of its own; 0 for calls without prices."""
    own = tx.settings.screenshots
    calls = (
        (own.vision_provider, own.vision_model, Operation.ANALYSE.value),
        (own.text_provider, own.text_model, Operation.EXPAND.value),
        (own.text_provider, own.text_model, Operation.MERGE.value),
        (own.embeddings_provider, own.embeddings_model, "embed_nodes"),
    )
    return [Part(count, sum(call_cost.of_call(tx, *call) for call in calls))]


def of_letters(tx: ReadTx, kind: str) -> list[Part]:
    """Estimate the cost of repeating one dead letter of this `kind`: `merge` or `vector`."""
    own = tx.settings.screenshots
    calls = {
        "merge": (own.text_provider, own.text_model, Operation.MERGE.value),
        "vector": (own.embeddings_provider, own.embeddings_model, "embed_nodes"),
    }
    return [Part(1, call_cost.of_call(tx, *calls[kind]))]


def unfinished(session: Session, items: Collection[str]) -> set[str]:
    """Of these names of frames (see `frame`) and ids of batches, return those whose work can still need calls."""
    frames = [int(item.removeprefix(_FRAME)) for item in items if item.startswith(_FRAME)]
    batches = [int(item) for item in items if not item.startswith(_FRAME)]
    waits = and_(SHOTS.c.id.in_(frames), SHOTS.c.batch_id.is_(None), SHOTS.c.status.in_(_OPEN))
    frames_waiting = {frame(shot_id) for shot_id in session.execute(select(SHOTS.c.id).where(waits)).scalars()}
    merging = select(NODES.c.id).where(NODES.c.batch_id == BATCHES.c.id, NODES.c.status.in_(_OPEN)).exists()
    works = and_(BATCHES.c.id.in_(batches), or_(BATCHES.c.status.in_(_OPEN), merging))
    return frames_waiting | {str(batch_id) for batch_id in session.execute(select(BATCHES.c.id).where(works)).scalars()}
