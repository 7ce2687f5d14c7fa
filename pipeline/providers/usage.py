"""What providers were asked lately, by the calls on record: for gates whose Redis forgot it."""

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import select

from pipeline.engine.gate import Unit, Usage
from pipeline.engine.traces import AiCall
from pipeline.storage.context import Context

_STEPS = 2000
"""Calls are put together by this many steps of time, as of the last of them: a long window has very many."""
_LONGEST_PREPARED = timedelta(seconds=10)
"""A request leaves later than its call begins, by no more than this, nor than the call took."""


def on_record(context: Context, queues: Iterable[str], within_s: float) -> Usage:
    """The calls of these queues in the last seconds, in requests and tokens."""
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
        unit: [(int(step * step_ms), amount) for step, amount in sorted(found.items()) if amount]
        for unit, found in ((Unit.REQUESTS, requests), (Unit.TOKENS, tokens))
    }
