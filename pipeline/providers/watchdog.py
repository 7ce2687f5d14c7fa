"""The watchdog checks the calls on record and the clock, and acts where no worker is left to act.

Workers open and close breakers by the calls that they make. Their observations may be lost: a worker is killed, or
Redis is emptied or unreachable. The calls are on record, so the watchdog draws the same conclusions from the calls that
were recorded since a breaker last opened or closed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile

import structlog
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from pipeline.engine import live_settings as live
from pipeline.engine.breaker import RATE_LIMIT_S
from pipeline.engine.errors import ErrorKind
from pipeline.engine.traces import AiCall
from pipeline.engine.transaction import Tx
from pipeline.providers import breaker_record, gates
from pipeline.providers.breaker_record import BreakerRecord
from pipeline.providers.spend import next_reset
from pipeline.settings import ProviderProfile
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
RECENT_CALLS = 32
"""How many of each queue's last calls are checked; more if a breaker needs more to open."""
_AGAINST_PROVIDER = {ErrorKind.TRANSIENT, ErrorKind.RATE_LIMITED, ErrorKind.QUOTA, ErrorKind.UNAVAILABLE}
NEWEST_CALL = select(func.max(AiCall.id))


@dataclass(frozen=True)
class RecentCall:
    """A call on record. `status`: `ok`, or the kind of its error."""

    id: int
    status: str
    started: datetime
    ended: datetime

    @property
    def worked(self) -> bool:
        """Whether the call shows that the provider works: it succeeded, or its request was at fault."""
        return self.status not in _AGAINST_PROVIDER


@dataclass(frozen=True)
class Opening:
    """Open a breaker for `seconds`; 0: for its cool-down."""

    seconds: float
    reason: str


def opening(
    calls: Sequence[RecentCall], profile: ProviderProfile, quota_reset: Callable[[datetime], datetime], now: datetime
) -> Opening | None:
    """Decide whether to open a provider's breaker; None: leave it.

    `calls`: those since it last opened or closed, newest first by their end.
    """
    worked = max((call.started for call in calls if call.worked), default=None)
    # Calls in flight during the refusal say nothing about the time after it.
    refusals = [call for call in calls if worked is None or call.ended > worked]
    for kind, reason in ((ErrorKind.QUOTA, "daily quota"), (ErrorKind.RATE_LIMITED, "rate limit")):
        refused = next((call.ended for call in refusals if call.status == kind), None)
        if refused is None:
            continue
        until = quota_reset(refused) if kind is ErrorKind.QUOTA else refused + timedelta(seconds=RATE_LIMIT_S)
        if until > now:
            return Opening((until - now).total_seconds(), reason)
    # Calls older than the longest cool-down say nothing about the provider's current state.
    if not calls or calls[0].ended <= now - timedelta(seconds=profile.breaker_longest_s):
        return None
    newest = calls[0]
    alone = not any(call.worked and call.ended >= newest.started for call in calls)
    if newest.status == ErrorKind.UNAVAILABLE and alone:
        return Opening(0.0, "the key, the model or the account is refused, by the calls on record")
    in_a_row = list(takewhile(lambda call: call.status == ErrorKind.TRANSIENT, calls))
    if len(in_a_row) >= profile.breaker_fail_max:
        return Opening(0.0, f"{profile.breaker_fail_max} failures in a row on record")
    return None


def has_recovered(calls: Sequence[RecentCall], until: datetime) -> bool:
    """Whether a provider works after its breaker was open `until` then: its newest call began later and worked."""
    return bool(calls) and calls[0].worked and calls[0].started >= until


def check_calls(context: Context) -> list[str]:
    """Open and close breakers by the calls on record; return the names of changed ones. Safe to run in parallel. Raises
    `RedisError`."""
    return [name for name in context.gates.breakers if _check_breaker(context, name)]


def _check_breaker(context: Context, name: str) -> bool:
    state = gates.breaker(context, name).inspect().state
    if state == "open":
        return False
    with context.db.read() as session:
        record, calls = _recent(session, context, name)
    if state == "half-open":
        until = datetime.fromtimestamp(record.until / 1000, UTC)
        return has_recovered(calls, until) and _close(context, name, record)
    return _opening(context, name, record, calls) is not None and _open(context, name)


def _opening(context: Context, name: str, record: BreakerRecord, calls: Sequence[RecentCall]) -> Opening | None:
    now = context.db.now()
    # If only the database says open, Redis was emptied, and `gates.sync` restores it.
    if record.until > now.timestamp() * 1000:
        return None
    profile = context.settings.providers[name.partition(":")[0]]
    return opening(calls, profile, lambda at: next_reset(profile, at), now)


def _open(context: Context, name: str) -> bool:
    """Open a breaker if the calls on record still justify it; False if another process opened or closed it in the
    meantime."""
    profile = context.settings.providers[name.partition(":")[0]]

    def work(tx: Tx) -> Opening | None:
        live.bump(tx)  # locks out other writers
        decision = _opening(context, name, *_recent(tx, context, name))
        if decision:
            until = int((tx.now.timestamp() + (decision.seconds or profile.breaker_cool_down_s)) * 1000)
            breaker_record.write(tx, name, until, decision.reason, breaker_record.profile_digest(profile))
        return decision

    decision = context.db.run(work)
    if decision is None or not gates.open_as_recorded(context, name, decision.seconds, decision.reason):
        return False
    gates.publish_breaker(context, name, "open", decision.reason)
    return True


def _close(context: Context, name: str, record: BreakerRecord) -> bool:
    """Close a half-open breaker; False if another process opened or closed it in the meantime."""

    def work(tx: Tx) -> bool:
        live.bump(tx)
        if breaker_record.read(live.stored(tx), name) != record:
            return False
        breaker_record.write(tx, name, 0, "")
        return True

    breaker = gates.breaker(context, name)
    if not context.db.run(work) or breaker.inspect().state != "half-open":
        return False
    breaker.close()
    gates.publish_breaker(context, name, "closed")
    return True


def _recent(session: Session, context: Context, name: str) -> tuple[BreakerRecord, list[RecentCall]]:
    """Return a breaker's record, and its queues' latest calls recorded since it last opened or closed, newest first by
    their end."""
    record = breaker_record.read(live.stored(session), name)
    limit = max(RECENT_CALLS, context.settings.providers[name.partition(":")[0]].breaker_fail_max)
    newest_id = session.execute(NEWEST_CALL).scalar_one() or 0
    # After retention deletes all calls, ids may restart.
    acted_on = record.calls if record.calls <= newest_id else 0
    calls = []
    for queue in context.gates.closed_by(name):
        for call_id, status, started, took_ms in session.execute(newest_calls(queue, limit)):
            if call_id > acted_on:
                calls.append(RecentCall(call_id, status, started, started + timedelta(milliseconds=took_ms)))
    return record, sorted(calls, key=lambda call: (call.ended, call.id), reverse=True)


def newest_calls(queue: str, limit: int) -> Select[int, str, datetime, int]:
    """Return the query for the last `limit` calls of a queue, newest first: id, status, start, duration in ms."""
    columns = select(AiCall.id, AiCall.status, AiCall.created_at, AiCall.latency_ms)
    return columns.where(AiCall.queue == queue).order_by(AiCall.created_at.desc()).limit(limit)


def end_expired(context: Context) -> list[str]:
    """Announce breakers that became half-open, and end pauses whose time is over; return the queues concerned.

    Compare-and-set announces each once. The gates themselves follow the clock, and do not depend on this.
    """
    due = [name for name in context.gates.breakers if gates.breaker(context, name).half_open_if_due()]
    for name in due:
        gates.publish_breaker(context, name, "half-open")
    now = context.db.now()

    def work(tx: Tx) -> list[str]:
        over = [
            key
            for key, row in live.stored(tx).items()
            if key.startswith("pause.") and 0 <= json.loads(row)["until"] < now.timestamp() * 1000
        ]
        for key in over:
            live.drop(tx, key)
        return over

    ended = [key.removeprefix("pause.") for key in context.db.run(work)]
    for queue in ended:
        log.info("pause.ended", queue=queue)
    return ended + [queue for name in due for queue in context.gates.closed_by(name)]


def closed(context: Context) -> list[str]:
    """Return the queues that an operator, a breaker or a spend cap keeps closed now."""
    return [name for name in context.gates.queues if gates.gate(context, name).inspect().closed]
