"""What one may ask of the flow, each in one transaction: take frames in, switch sources, try again, forget."""

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
"""Kinds of dead letters; merges and vectors are named by their nodes."""


_NEXT = {"batch": Scope.BATCHES, "merge": Scope.MERGES, "vector": Scope.VECTORS}


def batch_now(context: Context, source: str) -> None:
    """Have a source's frames looked at without waiting for more of them, when nothing is to follow soon."""
    context.db.run(lambda tx: tx.launch(FLOW, buffer_of(source, flush=True)))


def replay(context: Context, kind: str, ids: Sequence[int] | None = None, *, strict: bool = True) -> list[int]:
    """Try dead letters again: these, or all of the kind; the ids of those that were. What was paid for stays.

    Raises `UserError`, with nothing changed, if one of `ids` is not a dead letter; unless `strict`, it is left out.
    """
    if kind not in DEAD_LETTERS:
        raise UserError(f"{kind} is not a kind of dead letter: {', '.join(DEAD_LETTERS)}", code="usage")

    def act(tx: Tx) -> list[int]:
        again: dict[str, Any] = {"error": None, "attempts": 0, "next_run_at": None, "updated_at": tx.now}
        table, machine = DEAD_LETTERS[kind]
        if kind == "batch":
            again |= {"attempts_before": BATCHES.c.attempts_before + BATCHES.c.attempts, "finished_at": None}
        which = [table.c.id.in_(ids)] if ids is not None else []
        done = sorted(row.id for row in machine.move_returning(tx, table, WorkEvent.RETRY, *which, **again))
        missing = sorted(set(ids or ()) - set(done))
        if missing and strict:
            raise UserError(f"not dead letters: {', '.join(map(str, missing))}", code="unknown_dead_letter")
        if kind == "batch":
            # Frames whose files are gone stay as they are: there is nothing to analyse.
            there = and_(SHOTS.c.batch_id.in_(done), SHOTS.c.storage_state == "stored")
            SCREENSHOT.move(tx, SHOTS, WorkEvent.RETRY, there, error=None, vlm_attempts=0, updated_at=tx.now)
            unfinished = and_(SHARDS.c.batch_id.in_(done), SHARDS.c.status != WorkStatus.SUCCEEDED)
            tx.execute(update(SHARDS).where(unfinished).values(attempts=0, next_run_at=None))
        _admit(tx, kind, done)
        tx.launch(FLOW, _NEXT[kind], *(map(scope_of, done) if kind == "batch" else ()))
        return done

    return context.db.run(act)


def _admit(tx: Tx, kind: str, ids: Sequence[int]) -> None:
    """Have the caller pay for these dead letters, which are tried again."""
    if kind == "batch":
        shots = select(SHOTS.c.batch_id, func.count()).where(SHOTS.c.batch_id.in_(ids)).group_by(SHOTS.c.batch_id)
        wanted = {str(one): costs.of_frames(tx, count) for one, count in tx.execute(shots)}
        accounts.admit(tx, FLOW, wanted)
        return
    name = {"merge": merge, "vector": embedding}[kind].trace_unit
    of = select(NODES.c.id, NODES.c.batch_id).where(NODES.c.id.in_(ids), NODES.c.batch_id.is_not(None))
    for node_id, batch_id in tx.execute(of).all():
        one = {str(batch_id): costs.of_letters(tx, kind)}
        accounts.admit(tx, FLOW, one, unit=name(node_id))


def exclusions(context: Context) -> Exclusions:
    """Whose frames are never stored."""
    own, known = context.settings.screenshots, live_settings(context.settings)
    with context.db.read() as session:
        said = {value.key: str(value.value) for value in live.values(session, known)}
    apps, titles = (patterns_in(said[f"screenshots.excluded_{what}"]) for what in ("apps", "titles"))
    return Exclusions(apps, titles, list(own.excluded_apps), list(own.excluded_titles))


def exclude(
    context: Context, *, apps: Sequence[str] | None = None, titles: Sequence[str] | None = None, by: str = ""
) -> Exclusions:
    """From now on store no frames of these programs and window titles, beside those of the settings; None: as before.

    Patterns such as `*KeePass*`, in any case. Raises `UserError` for one that holds a semicolon or excludes everything.
    """
    known, given = live_settings(context.settings), {"apps": apps, "titles": titles}
    if any(";" in pattern for said in given.values() for pattern in said or ()):
        raise UserError("a pattern cannot hold a semicolon: write ? for it", code="bad_value")

    def act(tx: Tx) -> None:
        for what, said in given.items():
            if said is not None:
                key = f"screenshots.excluded_{what}"
                live.change(tx, known, key, "; ".join(said))
                live.note(tx, key, "", by)  # else the one before seems to have done it

    context.db.run(act)
    return exclusions(context)
