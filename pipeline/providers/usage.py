"""Recent usage of providers from the calls on record, for gates whose Redis was emptied."""

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import select

from pipeline.engine.gate import Unit, Usage
from pipeline.engine.traces import AiCall
from pipeline.storage.context import Context

_STEPS = 2000
"""Calls are grouped into this many steps of time, since a long window has very many."""
_LONGEST_PREPARED = timedelta(seconds=10)
"""A request leaves after its call begins, by at most this or the call's duration."""


def on_record(context: Context, queues: Iterable[str], within_s: float) -> Usage:
    """Return the usage of these queues in the last `within_s` seconds, in requests and in tokens: (age in ms, amount)
    pairs, in steps of time, the latest first."""
    now = context.db.now()
    oldest = now - timedelta(seconds=within_s * 1.01)
    query = select(AiCall.created_at, AiCall.latency_ms, AiCall.input_tokens + AiCall.output_tokens).where(
        AiCall.queue.in_(sorted(queues)), AiCall.created_at >= oldest - _LONGEST_PREPARED
    )
    step_ms = max(1.0, within_s * 1000 / _STEPS)
    requests: dict[int, int] = {}
    tokens: dict[int, int] = {}
    with context.db.read() as session:
        for begun_at, took_ms, used in session.execute(query):
            made_at = begun_at + min(timedelta(milliseconds=took_ms), _LONGEST_PREPARED)
            if made_at < oldest:
                continue
            step = int(max(0.0, (now - made_at).total_seconds() * 1000) / step_ms)
            requests[step] = requests.get(step, 0) + 1
            tokens[step] = tokens.get(step, 0) + used
    return {
        unit: [(int(step * step_ms), amount) for step, amount in sorted(amounts.items()) if amount]
        for unit, amounts in ((Unit.REQUESTS, requests), (Unit.TOKENS, tokens))
    }
