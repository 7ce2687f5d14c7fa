"""What one may ask of the flow, each in one transaction: take frames in, switch sources, try again, forget."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, func, select, update
from sqlalchemy.orm import Session

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
    context.db.run(lambda session: session.launch(FLOW, buffer_of(source, flush=True)))


def replay(context: Context, kind: str, ids: Sequence[int] | None = None, *, strict: bool = True) -> list[int]:
    """Try dead letters again: these, or all of the kind; the ids of those that were. What was paid for stays.

    Raises `UserError`, with nothing changed, if one of `ids` is not a dead letter; unless `strict`, it is left out.
    """
    if kind not in DEAD_LETTERS:
        raise UserError(f"{kind} is not a kind of dead letter: {', '.join(DEAD_LETTERS)}", code="usage")

    def act(session: Tx) -> list[int]:
        now = context.db.now()
        again: dict[str, Any] = {"error": None, "attempts": 0, "next_run_at": None, "updated_at": now}
        table, machine = DEAD_LETTERS[kind]
        if kind == "batch":
            again |= {"attempts_before": BATCHES.c.attempts_before + BATCHES.c.attempts, "finished_at": None}
        which = [table.c.id.in_(ids)] if ids is not None else []
        done = sorted(row.id for row in machine.move_returning(session, table, WorkEvent.RETRY, *which, **again))
        missing = sorted(set(ids or ()) - set(done))
        if missing and strict:
            raise UserError(f"not dead letters: {', '.join(map(str, missing))}", code="unknown_dead_letter")
        if kind == "batch":
            # Frames whose files are gone stay as they are: there is nothing to analyse.
            there = and_(SHOTS.c.batch_id.in_(done), SHOTS.c.storage_state == "stored")
            SCREENSHOT.move(session, SHOTS, WorkEvent.RETRY, there, error=None, vlm_attempts=0, updated_at=now)
            unfinished = and_(SHARDS.c.batch_id.in_(done), SHARDS.c.status != WorkStatus.SUCCEEDED)
            session.execute(update(SHARDS).where(unfinished).values(attempts=0, next_run_at=None))
        _admit(context, session, kind, done)
        session.launch(FLOW, _NEXT[kind], *(map(scope_of, done) if kind == "batch" else ()))
        return done

    return context.db.run(act)


def _admit(context: Context, session: Session, kind: str, ids: Sequence[int]) -> None:
    """Have the caller pay for these dead letters, which are tried again."""
    settings, now = context.settings, context.db.now()
    if kind == "batch":
        shots = select(SHOTS.c.batch_id, func.count()).where(SHOTS.c.batch_id.in_(ids)).group_by(SHOTS.c.batch_id)
        wanted = {str(one): costs.of_frames(session, settings, count) for one, count in session.execute(shots)}
        accounts.admit(session, settings, now, FLOW, wanted)
        return
    name = {"merge": merge, "vector": embedding}[kind].trace_unit
    of = select(NODES.c.id, NODES.c.batch_id).where(NODES.c.id.in_(ids), NODES.c.batch_id.is_not(None))
    for node_id, batch_id in session.execute(of).all():
        one = {str(batch_id): costs.of_letters(session, settings, kind)}
        accounts.admit(session, settings, now, FLOW, one, unit=name(node_id))


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

    def act(session: Session) -> None:
        for what, said in given.items():
            if said is not None:
                key, now = f"screenshots.excluded_{what}", context.db.now()
                live.change(session, known, key, "; ".join(said), now)
                live.note(session, key, "", by, now)  # else the one before seems to have done it

    context.db.run(act)
    return exclusions(context)
