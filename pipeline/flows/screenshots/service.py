"""The flow's commands: ingest frames, switch sources, replay dead letters, exclude programs, delete time ranges."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, func, select, update

from pipeline.engine import accounts
from pipeline.engine import live_settings as live
from pipeline.engine.errors import UserError
from pipeline.engine.transaction import Tx
from pipeline.flows.screenshots import costs
from pipeline.flows.screenshots.deletion import forget
from pipeline.flows.screenshots.frames.intake import ingest, leave_out, set_active
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, NODES
from pipeline.flows.screenshots.live_settings import live_settings, patterns_in
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.scopes import FLOW, Scope, buffer_of, scope_of
from pipeline.flows.screenshots.states import BATCH, EMBEDDING, NODE, SCREENSHOT, WorkEvent, WorkStatus
from pipeline.flows.screenshots.views import Exclusions
from pipeline.flows.screenshots.work import embedding, merge
from pipeline.storage.context import Context

__all__ = [
    "DEAD_LETTERS",
    "batch_now",
    "exclude",
    "exclusions",
    "forget",
    "ingest",
    "leave_out",
    "replay",
    "set_active",
]

DEAD_LETTERS = {"batch": (BATCHES, BATCH), "merge": (NODES, NODE), "vector": (EMBEDDINGS, EMBEDDING)}
"""Kinds of dead letters; merges and vectors have the ids of their nodes."""


_NEXT = {"batch": Scope.BATCHES, "merge": Scope.MERGES, "vector": Scope.VECTORS}


def batch_now(context: Context, source: str) -> None:
    """Ask workers to batch all of a source's frames without waiting for more; returns before they do."""
    context.db.run(lambda tx: tx.launch(FLOW, buffer_of(source, flush=True)))


def replay(context: Context, kind: str, ids: Sequence[int] | None = None, *, strict: bool = True) -> list[int]:
    """Make these dead letters, or all of the kind, wait for workers again, as if untried; return their ids. Results of
    earlier calls stay.

    If one of `ids` is not a dead letter, raises `UserError` and changes nothing; without `strict`, skips it. Raises
    `UserError` for an unknown kind.
    """
    if kind not in DEAD_LETTERS:
        raise UserError(f"{kind} is not a kind of dead letter: {', '.join(DEAD_LETTERS)}", code="usage")

    def act(tx: Tx) -> list[int]:
        reset: dict[str, Any] = {"error": None, "attempts": 0, "next_run_at": None, "updated_at": tx.now}
        table, machine = DEAD_LETTERS[kind]
        if kind == "batch":
            reset |= {"attempts_before": BATCHES.c.attempts_before + BATCHES.c.attempts, "finished_at": None}
        which = [table.c.id.in_(ids)] if ids is not None else []
        done = sorted(row.id for row in machine.move_returning(tx, table, WorkEvent.RETRY, *which, **reset))
        missing = sorted(set(ids or ()) - set(done))
        if missing and strict:
            raise UserError(f"not dead letters: {', '.join(map(str, missing))}", code="unknown_dead_letter")
        if kind == "batch":
            # Skip frames without files: analysis needs the picture.
            with_files = and_(SHOTS.c.batch_id.in_(done), SHOTS.c.storage_state == "stored")
            SCREENSHOT.move(tx, SHOTS, WorkEvent.RETRY, with_files, error=None, vlm_attempts=0, updated_at=tx.now)
            unfinished = and_(SHARDS.c.batch_id.in_(done), SHARDS.c.status != WorkStatus.SUCCEEDED)
            tx.execute(update(SHARDS).where(unfinished).values(attempts=0, next_run_at=None))
        _admit(tx, kind, done)
        tx.launch(FLOW, _NEXT[kind], *(map(scope_of, done) if kind == "batch" else ()))
        return done

    return context.db.run(act)


def _admit(tx: Tx, kind: str, ids: Sequence[int]) -> None:
    """Reserve the cost of these replayed dead letters on the caller's account."""
    if kind == "batch":
        shots = select(SHOTS.c.batch_id, func.count()).where(SHOTS.c.batch_id.in_(ids)).group_by(SHOTS.c.batch_id)
        wanted = {str(batch_id): costs.of_frames(tx, count) for batch_id, count in tx.execute(shots)}
        accounts.admit(tx, FLOW, wanted)
        return
    name = {"merge": merge, "vector": embedding}[kind].trace_unit
    of = select(NODES.c.id, NODES.c.batch_id).where(NODES.c.id.in_(ids), NODES.c.batch_id.is_not(None))
    for node_id, batch_id in tx.execute(of).all():
        parts = {str(batch_id): costs.of_letters(tx, kind)}
        accounts.admit(tx, FLOW, parts, unit=name(node_id))


def exclusions(context: Context) -> Exclusions:
    """Return the patterns of programs and titles whose frames Penstock never stores, live ones and those of the
    settings."""
    own, known = context.settings.screenshots, live_settings(context.settings)
    with context.db.read() as session:
        values = {value.key: str(value.value) for value in live.values(session, known)}
    apps, titles = (patterns_in(values[f"screenshots.excluded_{noun}"]) for noun in ("apps", "titles"))
    return Exclusions(apps, titles, list(own.excluded_apps), list(own.excluded_titles))


def exclude(
    context: Context, *, apps: Sequence[str] | None = None, titles: Sequence[str] | None = None, by: str = ""
) -> Exclusions:
    """Replace the live exclusions of programs and window titles; None keeps them, an empty list removes them. Those of
    the settings stay. `by`: the name to record.

    Patterns such as `*KeePass*` match in any case. Raises `UserError` for a semicolon, for too many or too long
    patterns, or if one excludes everything.
    """
    known, patterns_by = live_settings(context.settings), {"apps": apps, "titles": titles}
    if any(";" in pattern for patterns in patterns_by.values() for pattern in patterns or ()):
        raise UserError("a pattern cannot contain a semicolon: write ? for it", code="bad_value")

    def act(tx: Tx) -> None:
        for noun, patterns in patterns_by.items():
            if patterns is not None:
                key = f"screenshots.excluded_{noun}"
                live.change(tx, known, key, "; ".join(patterns))
                live.note(tx, key, "", by)  # otherwise the value names the previous author

    context.db.run(act)
    return exclusions(context)
