"""Which queues stand behind which gate and breaker, and what keeps Redis in step with the database.

The database is the truth for limits, pauses and open breakers; the gates in Redis are what workers ask. Whoever
notices that they differ (a change, a hand on the table, an emptied Redis) puts Redis right.
"""

import hashlib
import json
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, TypeVar

import structlog
from redis import RedisError

from pipeline.engine import events
from pipeline.engine import live_settings as live
from pipeline.engine.breaker import Breaker, BreakerPolicy, BreakerState
from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.gate import Gate, Scope, provider_scope
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.limits import parse_windows
from pipeline.engine.live_settings import Live, amount, whole, windows
from pipeline.engine.views import money
from pipeline.providers import breaker_record, changes, registry, spend
from pipeline.providers.breaker_record import profile_digest
from pipeline.providers.spend import next_reset
from pipeline.providers.usage import on_record
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
APPLIED = "penstock:{gates}:configured"
SLOT_MARGIN_S = 30.0
PLAIN = ("maintenance", "control", "cpu", "io", "capture")
"""Queues without a gate."""


@dataclass(frozen=True)
class GatedQueue:
    """A queue whose messages each call one provider."""

    name: str
    provider: str
    capability: str
    limits: str = ""
    """What holds for this queue, beside its provider's limits, where no live setting says otherwise."""
    limits_setting: str = ""
    """A live setting, in messages a minute, that comes before `limits`."""
    concurrency: int = 0
    """Calls of this queue under way at once, where no live setting says otherwise; 0: as its provider allows."""

    @property
    def breaker(self) -> str:
        """The breaker that closes it."""
        return f"{self.provider}:{self.capability}"


@dataclass(frozen=True)
class Declaration:
    """A flow's queues and settings, without its works."""

    gated_queues: Callable[[Settings], list[GatedQueue]] = lambda _: []
    """Queues of the flow's own whose messages each call a provider."""
    settings: Callable[[Settings], Any] = lambda _: None
    """Reads the settings that the flow keeps in its own package; they are listed in `pipeline.settings.SECTIONS`."""
    live_settings: Callable[[Settings], dict[str, Live]] = lambda _: {}
    """Settings that can be changed while everything runs, by key."""


_declared: list[Callable[[], Iterable[Declaration]]] = []
_tables: list[dict[int, Any]] = []
Table = TypeVar("Table")


def declare(flows: Callable[[], Iterable[Declaration]]) -> None:
    """Name the flows whose queues have gates. `pipeline.flows` does so when it is imported: gates know no flow."""
    _declared[:] = [flows]
    for kept in _tables:
        kept.clear()


def _declarations() -> Iterable[Declaration]:
    if not _declared:
        raise RuntimeError("nobody declared the flows: import pipeline.flows first")
    return _declared[0]()


def queue_name(capability: str, provider: str) -> str:
    """A queue for each provider: one that is closed never keeps another's work waiting."""
    return f"{capability}.{provider}"


def _once_per_settings(build: Callable[[Settings], Table]) -> Callable[[Settings], Table]:
    """Build a table once for each settings object, which nobody changes: workers look things up for each message."""
    kept: dict[int, tuple[weakref.ref[Settings], Table]] = {}
    _tables.append(kept)

    @wraps(build)
    def table(settings: Settings) -> Table:
        key = id(settings)
        if key not in kept:
            kept[key] = weakref.ref(settings, lambda _: kept.pop(key, None)), build(settings)
        return kept[key][1]

    return table


@_once_per_settings
def gated_queues(settings: Settings) -> Mapping[str, GatedQueue]:
    """Every queue with a gate, by name: one for each provider, and those of the flows."""
    queues = [GatedQueue(queue_name("vision", name), name, "vision") for name in sorted(settings.providers)]
    for flow in _declarations():
        queues += flow.gated_queues(settings)
    return MappingProxyType({queue.name: queue for queue in queues})


def queue_names(settings: Settings) -> list[str]:
    """Every queue that workers know: those without a gate first."""
    return [*PLAIN, *gated_queues(settings)]


def gate(context: Context, queue: GatedQueue) -> Gate:
    """The gate of a queue, made once in a process."""
    key = ("gate", queue.name)
    if key not in context.made:
        profile = context.settings.providers[queue.provider]
        made = Gate(context.redis, queue.name, queue.breaker, profile.timeout_s + SLOT_MARGIN_S)
        context.made.setdefault(key, made)
    found: Gate = context.made[key]
    return found


def all_gates(context: Context) -> list[Gate]:
    """The gates of all queues that have one."""
    return [gate(context, queue) for queue in gated_queues(context.settings).values()]


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
    queue = gated_queues(context.settings).get(queue_name)
    if queue is None:
        return None
    profile = context.settings.providers[queue.provider]
    return GuardedCall(
        gate(context, queue),
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


@_once_per_settings
def known_settings(settings: Settings) -> Mapping[str, Live]:
    """Every live setting there is."""
    found = live.of_fields("api", settings.api, settings.api.LIVE)
    for flow in _declarations():
        found |= flow.live_settings(settings)
    for provider in _providers(settings):
        profile = settings.providers[provider]
        found |= _limits_of(f"provider.{provider}", windows(profile.limits), 0)
        found[f"provider.{provider}.daily_spend_cap"] = Live(
            "spent in a day, the provider's queues close until the next; 0: no cap", amount, profile.daily_spend_cap
        )
    for queue in gated_queues(settings).values():
        found |= _limits_of(f"queue.{queue.name}", windows(queue.limits), queue.concurrency)
    return MappingProxyType(found)


def _limits_of(scope: str, limits: str, concurrency: int) -> dict[str, Live]:
    whom = "all queues of the provider together" if scope.startswith("provider.") else "this queue alone"
    return {
        f"{scope}.limits": Live(f"calls or tokens in a window, {whom}: 10/s, 100000 tokens/min", windows, limits),
        f"{scope}.concurrency": Live(f"calls under way at once, {whom}; 0: no limit", whole(0, 10_000), concurrency),
    }


def live_values(context: Context) -> dict[str, live.Value]:
    """Every live setting as it is in force, by key: a queue's limits follow `queue_rate_limit_max` if it does."""
    with context.db.read() as session:
        return _in_force(context.settings, live.values(session, known_settings(context.settings)))


def _in_force(settings: Settings, values: list[live.Value]) -> dict[str, live.Value]:
    found = {value.key: value for value in values}
    for name, queue in gated_queues(settings).items():
        own = found[f"queue.{name}.limits"]
        if queue.limits_setting and own.is_default:
            per_minute = found[queue.limits_setting]
            found[own.key] = replace(own, value=f"{per_minute.value}/min", error=own.error or per_minute.error)
    return found


def publish_defaults(context: Context) -> None:
    """A worker starts: what its settings say of limits is the fleet's default. Of two that differ, the later holds.

    So processes whose settings differ agree on what the gates should be.
    """
    known = known_settings(context.settings)
    shared = {queue.limits_setting for queue in gated_queues(context.settings).values()}
    own = {key: live.default for key, live in known.items() if key.startswith(("queue.", "provider.")) or key in shared}
    context.db.run(lambda session: live.publish_defaults(session, own, context.db.now()))
    if not context.settings.keyless:
        close_after_changes(context)


def close_after_changes(context: Context) -> None:
    """Close breakers that calls opened with another address, model or key than those in force now."""
    with context.db.read() as session:
        rows = live.stored(session)
    for name in breakers(context.settings):
        record, profile = breaker_record.read(rows, name), context.settings.providers[name.partition(":")[0]]
        if record.until and record.profile not in {"", profile_digest(profile)}:
            remember_breaker(context, name, None, "the provider's settings have changed")
            if context.online:
                with suppress(RedisError):  # a worker that finds Redis away takes the row's word later
                    breaker(context, name).close()
                    changes.changed(context, queues_of(context.settings, name))


def sync(context: Context) -> bool:
    """Put Redis right if the database says something else; whether there was anything to do.

    Configuration has the version of the rows, and the older never overwrites the newer.
    """
    with context.db.read() as session:
        rows = live.stored(session)
    if live.VERSION not in rows:
        context.db.run(lambda session: live.bump(session, context.db.now()))
        return sync(context)
    found = _in_force(context.settings, live.values_in(rows, known_settings(context.settings)))
    queues = gated_queues(context.settings)
    # Processes may know different queues: each sees to its own.
    whose, digest = _digest(sorted(queues)), _digest(rows)
    if context.redis.hget(APPLIED, whose) == digest:
        return False
    for value in found.values():
        if value.error:
            log.warning("setting.ignored", setting=value.key, error=value.error)
    newest = True
    for name in queues:
        own = gate(context, queues[name]).own
        fields = _pause(rows.get(f"pause.{name}"))
        newest &= _apply(context, own, f"queue.{name}", [name], found, rows, fields)
    for provider in _providers(context.settings):
        names = [name for name, queue in queues.items() if queue.provider == provider]
        fields = _cap(context, provider, float(found[f"provider.{provider}.daily_spend_cap"].value))
        shared = provider_scope(context.redis, provider)
        newest &= _apply(context, shared, f"provider.{provider}", names, found, rows, fields)
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
        changes.changed(context, [q.name for q in gated_queues(context.settings).values() if q.provider == provider])


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
    context.db.run(lambda session: breaker_record.write(session, name, until, reason, now, profile))
    publish_breaker(context, name, "closed" if state is None else state.state, reason)


def publish_breaker(context: Context, name: str, state: str, reason: str = "") -> None:
    """Publish an event: a breaker is open, half-open or closed."""
    fields = {"state": state} | ({"reason": reason} if reason else {})
    events.publish(context.redis, "gates", "breaker", breaker=name, **fields)
    log.warning("breaker.changed", breaker=name, **fields)


def _breaker_changed(context: Context, name: str, state: BreakerState | None) -> None:
    profile = context.settings.providers[name.partition(":")[0]]
    remember_breaker(context, name, state, profile=profile_digest(profile) if state else "")
    changes.changed(context, queues_of(context.settings, name))


def _providers(settings: Settings) -> list[str]:
    return sorted({queue.provider for queue in gated_queues(settings).values()})


def breakers(settings: Settings) -> list[str]:
    """The names of all breakers."""
    return sorted({queue.breaker for queue in gated_queues(settings).values()})


def closed_because(context: Context, queue: str) -> str:
    """Why nothing of a queue is let through now, in words; empty if its gate is open, or Redis cannot say."""
    found = gated_queues(context.settings).get(queue)
    if found is None:
        return ""
    try:
        closed = gate(context, found).look().closed
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


def queues_of(settings: Settings, breaker: str) -> list[str]:
    """The queues that a breaker closes."""
    return [queue.name for queue in gated_queues(settings).values() if queue.breaker == breaker]


def is_open(context: Context, provider: str, capability: str) -> bool:
    """Whether a provider's breaker is open now; False where Redis cannot say."""
    try:
        return breaker(context, f"{provider}:{capability}").look().state == "open"
    except RedisError:
        return False


def require(context: Context, queue: str) -> GatedQueue:
    found = gated_queues(context.settings)
    if queue not in found:
        names = ", ".join(sorted(found)) or "none, since no provider is configured"
        raise UserError(f"{queue} is not a queue with a gate; these are: {names}", code="unknown_queue")
    return found[queue]


def require_breaker(context: Context, name: str) -> Breaker:
    """A breaker by its name. Raises `UserError` for an unknown one."""
    known = breakers(context.settings)
    if name not in known:
        names = ", ".join(known) or "none, since no provider is configured"
        raise UserError(f"there is no breaker {name}; these are: {names}", code="unknown_breaker")
    return breaker(context, name)


def live_settings(context: Context) -> list[live.Value]:
    """Every live setting as it stands."""
    with context.db.read() as session:
        return live.values(session, known_settings(context.settings))


def live_setting(context: Context, key: str) -> live.Value:
    """One live setting. Raises `UserError` for an unknown key."""
    found = {value.key: value for value in live_settings(context)}
    if key not in found:
        raise live.unknown(key, found)
    return found[key]
