"""Retention over all flows: report the rows and files that grow, and remove the old ones."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import structlog

from pipeline.engine import events
from pipeline.engine.errors import told
from pipeline.engine.outbox import EVENTS
from pipeline.flows import flows
from pipeline.providers import calls
from pipeline.storage import idempotency, statements
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention, Rule, rows

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Pruned:
    """The removal of one kind of rows or files, real or dry. `flow` is empty for kinds that all flows share."""

    flow: str
    name: str
    kept: str
    removed: int
    error: str | None = None


def prune(context: Context, *, dry_run: bool = False) -> list[Pruned]:
    """Remove rows and files beyond their retention, or only count them; return one result for each kind, or its error,
    which stops no other."""
    removals = [_prune(context, flow, kind, dry_run=dry_run) for flow, kind in _all(context)]
    if not dry_run and any(removal.removed for removal in removals):
        context.db.checkpoint()
    return removals


def _prune(context: Context, flow: str, kind: Retention, *, dry_run: bool) -> Pruned:
    about = Pruned(flow, kind.name, kind.kept, 0)
    try:
        removed = (kind.due if dry_run else kind.remove)(context)
    except Exception as error:
        log.exception("prune.failed", flow=flow, kind=kind.name, error=type(error).__name__)
        return replace(about, error=told(error) or type(error).__name__)
    if removed and not dry_run:
        log.info("prune.removed", flow=flow, kind=kind.name, count=removed)
    return replace(about, removed=removed)


def _all(context: Context) -> Iterator[tuple[str, Retention]]:
    for flow in flows():
        for kind in flow.retained(context):
            yield flow.name, kind
    yield "", calls.retention(context)
    yield "", idempotency.expired(context)
    for kind in statements.expired(context):
        yield "", kind
    limits = context.settings.retention
    rule = Rule(limits.events_days, limits.events_count)
    yield "", rows("events", rule, EVENTS.c.seq, EVENTS.c.created_at)
    if context.online:
        act = partial(_progress, rule=rule)
        yield "", Retention("progress", str(rule), partial(act, dry_run=True), partial(act, dry_run=False))


def _progress(context: Context, *, rule: Rule, dry_run: bool) -> int:
    before = context.db.now() - timedelta(days=rule.days) if rule.days else None
    return events.trim(context.redis, before, rule.count, dry_run=dry_run)
