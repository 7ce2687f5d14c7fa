"""The gates and breakers of queues, and how Redis is kept in step with the database.

The database is the truth for limits, pauses and open breakers; workers consult the gates in Redis. Any process that
notices a difference (a change, a manual edit of the table, an emptied Redis) corrects Redis.
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
    """Return the gate of a queue, created once per process. Raises `UserError` for a queue without a gate."""
    key = ("gate", queue_name)
    if key not in context.cache:
        queue = context.gates.require(queue_name)
        profile = context.settings.providers[queue.provider]
        context.cache.setdefault(key, Gate(context.redis, queue_name, queue.breaker, profile.timeout_s + SLOT_MARGIN_S))
    cached: Gate = context.cache[key]
    return cached


def all_gates(context: Context) -> list[Gate]:
    """Return the gates of all gated queues."""
    return [gate(context, name) for name in context.gates.queues]


def breaker(context: Context, name: str) -> Breaker:
    """Return a breaker by its name, `provider:capability`, created once per process: creation asks Redis four times.
    Raises `KeyError` for an unknown provider."""
    key = ("breaker", name)
    if key not in context.cache:
        profile = context.settings.providers[name.partition(":")[0]]
        policy = BreakerPolicy(profile.breaker_fail_max, profile.breaker_cool_down_s, profile.breaker_longest_s)
        context.cache.setdefault(key, Breaker(context.redis, name, policy))
    cached: Breaker = context.cache[key]
    return cached


def guarded_call(context: Context, queue_name: str, holder: str) -> GuardedCall | None:
    """Return an object with which a message that was admitted as `holder` makes its calls, none yet; None if the queue
    has no gate."""
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
        answers=partial(answers, context.settings, queue.provider),
    )


def answers(settings: Settings, provider: str) -> bool:
    """Whether the provider answers a request that is free of charge now. False for nodes, which it does not ask."""
    if settings.providers[provider].kind == "nodes":
        return False
    try:
        registry.probe(settings, provider)
    except UnitError as error:
        return error.code == "not_found"  # a service without a list of models has answered
    return True


def live_values(context: Context) -> dict[str, live.Value]:
    """Return every live setting in force, by key. Unlike `live_settings`, a queue's default limits follow
    `queue_rate_limit_max` and the like."""
    with context.db.read() as session:
        return _in_force(context, live.values(session, context.gates.live_settings))


def _in_force(context: Context, values: list[live.Value]) -> dict[str, live.Value]:
    by_key = {value.key: value for value in values}
    for name, queue in context.gates.queues.items():
        own = by_key[f"queue.{name}.limits"]
        if queue.limits_setting and own.is_default:
            per_minute = by_key[queue.limits_setting]
            by_key[own.key] = replace(own, value=f"{per_minute.value}/min", error=own.error or per_minute.error)
    return by_key


def publish_defaults(context: Context) -> None:
    """Publish this worker's limits as the fleet's defaults when it starts, so that processes whose settings differ
    agree on the gates; the latest worker's defaults apply. Unless it is keyless, also `close_after_changes`."""
    known = context.gates.live_settings
    shared = {queue.limits_setting for queue in context.gates.queues.values()}
    own = {key: live.default for key, live in known.items() if key.startswith(("queue.", "provider.")) or key in shared}
    context.db.run(lambda tx: live.publish_defaults(tx, own))
    if not context.settings.keyless:
        close_after_changes(context)


def close_after_changes(context: Context) -> None:
    """Close breakers that opened with another address, model or key than those in force now, in the database and in
    Redis."""
    with context.db.read() as session:
        rows = live.stored(session)
    for name in context.gates.breakers:
        record, profile = breaker_record.read(rows, name), context.settings.providers[name.partition(":")[0]]
        if record.until and record.profile not in {"", profile_digest(profile)}:
            remember_breaker(context, name, None, "the provider's settings have changed")
            if context.online:
                with suppress(RedisError):  # a worker without Redis applies the row later
                    breaker(context, name).close()
                    context.gates_changed(context.gates.closed_by(name))


def sync(context: Context) -> bool:
    """Write limits, pauses and breakers from the database into Redis, unless its newest version is there already;
    return whether it did. Raises `RedisError`.

    The configuration carries the version of the rows, and an older version never overwrites a newer one.
    """
    with context.db.read() as session:
        rows = live.stored(session)
    if live.VERSION not in rows:
        context.db.run(live.bump)
        return sync(context)
    values = _in_force(context, live.values_in(rows, context.gates.live_settings))
    queues = context.gates.queues
    # Processes may know different queues: each maintains its own.
    field, digest = _digest(sorted(queues)), _digest(rows)
    if context.redis.hget(APPLIED, field) == digest:
        return False
    for value in values.values():
        if value.error:
            log.warning("setting.ignored", setting=value.key, error=value.error)
    newest = True
    for name in queues:
        own = gate(context, name).own
        fields = _pause(rows.get(f"pause.{name}"))
        newest &= _apply(context, own, f"queue.{name}", [name], values, rows, fields)
    for provider in context.gates.providers:
        fields = _cap(context, provider, float(values[f"provider.{provider}.daily_spend_cap"].value))
        shared = provider_scope(context.redis, provider)
        newest &= _apply(context, shared, f"provider.{provider}", context.gates.calling(provider), values, rows, fields)
    if newest:
        for key in rows:
            if key.startswith(breaker_record.PREFIX):
                _restore_breaker(context, key.removeprefix(breaker_record.PREFIX), rows)
        context.redis.hset(APPLIED, field, digest)
    return True


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def charge(context: Context, provider: str, cost: float) -> None:
    """Add a call's cost to today's spend, and close the provider's queues when it reaches the day's cap."""
    if spend.charge(context, provider, context.settings.providers[provider], cost):
        context.gates_changed(context.gates.calling(provider))


def _cap(context: Context, provider: str, cap: float) -> dict[str, str | float]:
    """Return the fields of a provider's scope for its spend cap, and for its closure if today's spend reached it."""
    profile = context.settings.providers[provider]
    spent = spend.spent_today(context, provider, profile)
    if not cap or spent < cap:
        return {"cap": cap, "spend_until": "", "spend_reason": ""}
    until = int(next_reset(profile, context.db.now()).timestamp() * 1000)
    return {"cap": cap, "spend_until": until, "spend_reason": f"{money(spent)} of {money(cap)} spent today"}


def _pause(row: str | None) -> dict[str, str | float]:
    """Return the fields of a queue's scope for an operator's pause."""
    pause = json.loads(row) if row else {"until": "", "reason": ""}
    return {"operator_until": pause["until"], "operator_reason": pause["reason"]}


def _apply(
    context: Context,
    scope: Scope,
    prefix: str,
    queues: list[str],
    values: Mapping[str, live.Value],
    rows: Mapping[str, str],
    fields: Mapping[str, str | float],
) -> bool:
    """Configure a scope; return False if a newer configuration is in force."""
    limits, slots = values[f"{prefix}.limits"], values[f"{prefix}.concurrency"]
    # An invalid row changes nothing: any earlier configuration stays.
    invalid = bool(limits.error or slots.error) and scope.ready()
    return scope.configure(
        None if invalid else parse_windows(limits.value),
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
    """Open a breaker that the database records as open; return False if it was closed in the meantime.

    Closing writes the row first and then closes it in Redis: whichever of the two comes last, it ends up closed.
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
    """Record that a breaker opened for `state.left_s` seconds, or with None that it closed for the reason `why`;
    publish that.

    Leaves Redis's breaker to the caller. `profile`: the digest of the settings with which it opened; empty if a person
    opened it. An emptied Redis does not close a recorded breaker, and the watchdog does not open it because of calls
    before it closed.
    """
    now = context.db.now()
    until = 0 if state is None else int((now.timestamp() + state.left_s) * 1000)
    reason = why if state is None else state.reason
    context.db.run(lambda tx: breaker_record.write(tx, name, until, reason, profile))
    publish_breaker(context, name, "closed" if state is None else state.state, reason)


def publish_breaker(context: Context, name: str, state: str, reason: str = "") -> None:
    """Log, and publish in Redis, that a breaker is open, half-open or closed."""
    fields = {"state": state} | ({"reason": reason} if reason else {})
    events.publish(context.redis, "gates", "breaker", breaker=name, **fields)
    log.warning("breaker.changed", breaker=name, **fields)


def _breaker_changed(context: Context, name: str, state: BreakerState | None) -> None:
    profile = context.settings.providers[name.partition(":")[0]]
    remember_breaker(context, name, state, profile=profile_digest(profile) if state else "")
    context.gates_changed(context.gates.closed_by(name))


def closed_because(context: Context, queue: str) -> str:
    """Return why a queue's gate is closed, in words; empty if it is open or has no gate, or Redis is down."""
    queue_facts = context.gates.queues.get(queue)
    if queue_facts is None:
        return ""
    try:
        closed = gate(context, queue).inspect().closed
    except RedisError:
        return ""
    if closed is None:
        return ""
    by, _, reason = closed
    why = {
        "operator": f"{queue} is paused by an operator",
        "spend": f"{queue_facts.provider} has reached its spend cap for today",
        "breaker": f"{queue_facts.provider} is paused by its breaker",
    }[by]
    return f"{why} ({reason})" if reason else why


def is_open(context: Context, provider: str, capability: str) -> bool:
    """Whether a provider's breaker is open now. False if it is half-open, or Redis is down."""
    try:
        return breaker(context, f"{provider}:{capability}").inspect().state == "open"
    except RedisError:
        return False


def require_breaker(context: Context, name: str) -> Breaker:
    """Return a breaker by its name. Raises `UserError` for an unknown one."""
    known = context.gates.breakers
    if name not in known:
        names = ", ".join(known) or "none, since no provider is configured"
        raise UserError(f"there is no breaker {name}; these are: {names}", code="unknown_breaker")
    return breaker(context, name)


def live_settings(context: Context) -> list[live.Value]:
    """Return every live setting as stored, or with its default."""
    with context.db.read() as session:
        return live.values(session, context.gates.live_settings)


def live_setting(context: Context, key: str) -> live.Value:
    """Return one live setting. Raises `UserError` for an unknown key."""
    values = {value.key: value for value in live_settings(context)}
    if key not in values:
        raise live.unknown(key, values)
    return values[key]
