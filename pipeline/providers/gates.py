"""Which queues stand behind which gate and breaker, and what keeps Redis in step with the database.

The database is the truth for limits, pauses and open breakers; the gates in Redis are what workers ask. Whoever
notices that they differ (a change, a hand on the table, an emptied Redis) puts Redis right.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from redis import RedisError

from pipeline.engine import events
from pipeline.engine import live_settings as live
from pipeline.engine.breaker import Breaker, BreakerPolicy, BreakerState
from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.gate import Gate, Scope, provider_scope
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.limits import parse_windows
from pipeline.engine.views import money
from pipeline.providers import breaker_record, registry, spend
from pipeline.providers.breaker_record import profile_digest
from pipeline.providers.spend import next_reset
from pipeline.providers.usage import on_record
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
APPLIED = "penstock:{gates}:configured"
SLOT_MARGIN_S = 30.0


def gate(context: Context, queue_name: str) -> Gate:
    """The gate of a queue, made once in a process. Raises `UserError` for a queue without one."""
    key = ("gate", queue_name)
    if key not in context.made:
        queue = context.gates.require(queue_name)
        profile = context.settings.providers[queue.provider]
        context.made.setdefault(key, Gate(context.redis, queue_name, queue.breaker, profile.timeout_s + SLOT_MARGIN_S))
    found: Gate = context.made[key]
    return found


def all_gates(context: Context) -> list[Gate]:
    """The gates of all queues that have one."""
    return [gate(context, name) for name in context.gates.queues]


def breaker(context: Context, name: str) -> Breaker:
    """A breaker by its name, `provider:capability`, made once in a process: making one asks Redis four times."""
    key = ("breaker", name)
    if key not in context.made:
        profile = context.settings.providers[name.partition(":")[0]]
        policy = BreakerPolicy(profile.breaker_fail_max, profile.breaker_cool_down_s, profile.breaker_longest_s)
        context.made.setdefault(key, Breaker(context.redis, name, policy))
    found: Breaker = context.made[key]
    return found


def guarded_call(context: Context, queue_name: str, holder: str) -> GuardedCall | None:
    """The way to the provider for a message that was admitted as `holder`; None if the queue has no gate."""
    queue = context.gates.queues.get(queue_name)
    if queue is None:
        return None
    profile = context.settings.providers[queue.provider]
    return GuardedCall(
        gate(context, queue_name),
        breaker(context, queue.breaker),
        holder,
        quota_reset=lambda now: next_reset(profile, now),
        on_change=lambda state: _breaker_changed(context, queue.breaker, state),
        cost_of=profile.cost,
        on_cost=lambda cost: charge(context, queue.provider, cost),
        tokens=profile.estimated_tokens,
        answers=partial(_answers, context.settings, queue.provider),
    )


def _answers(settings: Settings, provider: str) -> bool:
    """Whether the provider answers a question that costs nothing."""
    if settings.providers[provider].kind == "nodes":
        return False
    try:
        registry.probe(settings, provider)
    except UnitError as error:
        return error.code == "not_found"  # a service without a list of models has answered all the same
    return True


def live_values(context: Context) -> dict[str, live.Value]:
    """Every live setting as it is in force, by key: a queue's limits follow `queue_rate_limit_max` if it does."""
    with context.db.read() as session:
        return _in_force(context, live.values(session, context.gates.live_settings))


def _in_force(context: Context, values: list[live.Value]) -> dict[str, live.Value]:
    found = {value.key: value for value in values}
    for name, queue in context.gates.queues.items():
        own = found[f"queue.{name}.limits"]
        if queue.limits_setting and own.is_default:
            per_minute = found[queue.limits_setting]
            found[own.key] = replace(own, value=f"{per_minute.value}/min", error=own.error or per_minute.error)
    return found


def publish_defaults(context: Context) -> None:
    """A worker starts: what its settings say of limits is the fleet's default. Of two that differ, the later holds.

    So processes whose settings differ agree on what the gates should be.
    """
    known = context.gates.live_settings
    shared = {queue.limits_setting for queue in context.gates.queues.values()}
    own = {key: live.default for key, live in known.items() if key.startswith(("queue.", "provider.")) or key in shared}
    context.db.run(lambda tx: live.publish_defaults(tx, own))
    if not context.settings.keyless:
        close_after_changes(context)


def close_after_changes(context: Context) -> None:
    """Close breakers that calls opened with another address, model or key than those in force now."""
    with context.db.read() as session:
        rows = live.stored(session)
    for name in context.gates.breakers:
        record, profile = breaker_record.read(rows, name), context.settings.providers[name.partition(":")[0]]
        if record.until and record.profile not in {"", profile_digest(profile)}:
            remember_breaker(context, name, None, "the provider's settings have changed")
            if context.online:
                with suppress(RedisError):  # a worker that finds Redis away takes the row's word later
                    breaker(context, name).close()
                    context.gates_changed(context.gates.closed_by(name))


def sync(context: Context) -> bool:
    """Put Redis right if the database says something else; whether there was anything to do.

    Configuration has the version of the rows, and the older never overwrites the newer.
    """
    with context.db.read() as session:
        rows = live.stored(session)
    if live.VERSION not in rows:
        context.db.run(live.bump)
        return sync(context)
    found = _in_force(context, live.values_in(rows, context.gates.live_settings))
    queues = context.gates.queues
    # Processes may know different queues: each sees to its own.
    whose, digest = _digest(sorted(queues)), _digest(rows)
    if context.redis.hget(APPLIED, whose) == digest:
        return False
    for value in found.values():
        if value.error:
            log.warning("setting.ignored", setting=value.key, error=value.error)
    newest = True
    for name in queues:
        own = gate(context, name).own
        fields = _pause(rows.get(f"pause.{name}"))
        newest &= _apply(context, own, f"queue.{name}", [name], found, rows, fields)
    for provider in context.gates.providers:
        fields = _cap(context, provider, float(found[f"provider.{provider}.daily_spend_cap"].value))
        shared = provider_scope(context.redis, provider)
        newest &= _apply(context, shared, f"provider.{provider}", context.gates.calling(provider), found, rows, fields)
    if newest:
        for key in rows:
            if key.startswith(breaker_record.PREFIX):
                _restore_breaker(context, key.removeprefix(breaker_record.PREFIX), rows)
        context.redis.hset(APPLIED, whose, digest)
    return True


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def charge(context: Context, provider: str, cost: float) -> None:
    """Count what a call cost, and close the provider's queues when its day's cap is reached."""
    if spend.charge(context, provider, context.settings.providers[provider], cost):
        context.gates_changed(context.gates.calling(provider))


def _cap(context: Context, provider: str, cap: float) -> dict[str, str | float]:
    """The fields of a provider's scope that say what may be spent, and that it was."""
    profile = context.settings.providers[provider]
    spent = spend.spent_today(context, provider, profile)
    if not cap or spent < cap:
        return {"cap": cap, "spend_until": "", "spend_reason": ""}
    until = int(next_reset(profile, context.db.now()).timestamp() * 1000)
    return {"cap": cap, "spend_until": until, "spend_reason": f"{money(spent)} of {money(cap)} spent today"}


def _pause(row: str | None) -> dict[str, str | float]:
    """The fields of a queue's scope that say whether an operator paused it."""
    pause = json.loads(row) if row else {"until": "", "reason": ""}
    return {"operator_until": pause["until"], "operator_reason": pause["reason"]}


def _apply(
    context: Context,
    scope: Scope,
    prefix: str,
    queues: list[str],
    found: Mapping[str, live.Value],
    rows: Mapping[str, str],
    fields: Mapping[str, str | float],
) -> bool:
    """Configure a scope; False if something newer holds."""
    limits, slots = found[f"{prefix}.limits"], found[f"{prefix}.concurrency"]
    # A row that holds nonsense changes nothing: what was in force stays, if anything was.
    nonsense = bool(limits.error or slots.error) and scope.ready()
    return scope.configure(
        None if nonsense else parse_windows(limits.value),
        slots.value or None,
        fields,
        version=int(rows[live.VERSION]),
        on_record=partial(on_record, context, queues),
    )


def _restore_breaker(context: Context, name: str, rows: Mapping[str, str]) -> None:
    record = breaker_record.read(rows, name)
    left_s = record.until / 1000 - context.db.now().timestamp()
    if left_s > 0 and name.partition(":")[0] in context.settings.providers:
        open_as_recorded(context, name, left_s, record.reason)


def open_as_recorded(context: Context, name: str, seconds: float, reason: str) -> bool:
    """Open a breaker that the database says is open; False if somebody closed it meanwhile.

    Who closes it writes the row first, and closes it in Redis then: whichever of the two comes last, it is closed.
    """
    breaker(context, name).open(seconds, reason)
    with context.db.read() as session:
        still = breaker_record.read(live.stored(session), name).until
    if not still:
        breaker(context, name).close()
    return bool(still)


def remember_breaker(
    context: Context, name: str, state: BreakerState | None, why: str = "", *, profile: str = ""
) -> None:
    """Keep in the database that a breaker has opened, or with None that it is about to close, and `why`.

    So an emptied Redis does not close it, and the watchdog opens none because of calls before it was closed.
    """
    now = context.db.now()
    until = 0 if state is None else int((now.timestamp() + state.left_s) * 1000)
    reason = why if state is None else state.reason
    context.db.run(lambda tx: breaker_record.write(tx, name, until, reason, profile))
    publish_breaker(context, name, "closed" if state is None else state.state, reason)


def publish_breaker(context: Context, name: str, state: str, reason: str = "") -> None:
    """Publish an event: a breaker is open, half-open or closed."""
    fields = {"state": state} | ({"reason": reason} if reason else {})
    events.publish(context.redis, "gates", "breaker", breaker=name, **fields)
    log.warning("breaker.changed", breaker=name, **fields)


def _breaker_changed(context: Context, name: str, state: BreakerState | None) -> None:
    profile = context.settings.providers[name.partition(":")[0]]
    remember_breaker(context, name, state, profile=profile_digest(profile) if state else "")
    context.gates_changed(context.gates.closed_by(name))


def closed_because(context: Context, queue: str) -> str:
    """Why nothing of a queue is let through now, in words; empty if its gate is open, or Redis cannot say."""
    found = context.gates.queues.get(queue)
    if found is None:
        return ""
    try:
        closed = gate(context, queue).look().closed
    except RedisError:
        return ""
    if closed is None:
        return ""
    by, _, reason = closed
    why = {
        "operator": f"{queue} is paused by an operator",
        "spend": f"{found.provider} has reached its spend cap for today",
        "breaker": f"{found.provider} is left alone for a while",
    }[by]
    return f"{why} ({reason})" if reason else why


def is_open(context: Context, provider: str, capability: str) -> bool:
    """Whether a provider's breaker is open now; False where Redis cannot say."""
    try:
        return breaker(context, f"{provider}:{capability}").look().state == "open"
    except RedisError:
        return False


def require_breaker(context: Context, name: str) -> Breaker:
    """A breaker by its name. Raises `UserError` for an unknown one."""
    known = context.gates.breakers
    if name not in known:
        names = ", ".join(known) or "none, since no provider is configured"
        raise UserError(f"there is no breaker {name}; these are: {names}", code="unknown_breaker")
    return breaker(context, name)


def live_settings(context: Context) -> list[live.Value]:
    """Every live setting as it stands."""
    with context.db.read() as session:
        return live.values(session, context.gates.live_settings)


def live_setting(context: Context, key: str) -> live.Value:
    """One live setting. Raises `UserError` for an unknown key."""
    found = {value.key: value for value in live_settings(context)}
    if key not in found:
        raise live.unknown(key, found)
    return found[key]
