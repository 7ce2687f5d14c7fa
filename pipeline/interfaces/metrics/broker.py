"""Metrics from Redis: queues, gates, breakers, workers, the sweeper."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from redis import RedisError

from pipeline.engine.gate_registry import GatedQueue
from pipeline.engine.metric_family import Gauge
from pipeline.engine.metrics import oldest_messages_s, queue_depths
from pipeline.engine.presence import Presence, last_sweep_s
from pipeline.providers import gates
from pipeline.providers.spend import running_sum
from pipeline.standalone.roles import needed
from pipeline.storage.context import Context

_MOST_ROLES = 20
_OTHERS = "other"
_CLOSED_BY = ("operator", "spend", "breaker")
_STATES = ("closed", "open", "half-open")


def families(context: Context) -> list[Metric]:
    """All metrics from Redis. Raises `RedisError`."""
    if not context.online:
        raise RedisError("the embedded Redis is down")
    queues = list(context.gates.queues.values())
    return [
        *_queues(context),
        *_gates(context, queues),
        *_breakers(context),
        *_spent(context, queues),
        *_workers(context),
        *_server(context),
    ]


def _queues(context: Context) -> Iterator[Metric]:
    depth = Gauge("penstock_queue_messages", "Messages that wait in a queue.", labels=["queue"])
    oldest = Gauge(
        "penstock_queue_oldest_message_age_seconds",
        "Age of the message at the head of a queue; 0 if none waits.",
        labels=["queue"],
    )
    names = context.gates.names
    for name, waiting in queue_depths(context.redis, names).items():
        depth.put((name,), waiting)
    for name, age_s in oldest_messages_s(context.redis, names).items():
        oldest.put((name,), age_s)
    yield from (depth, oldest)


def _gates(context: Context, queues: list[GatedQueue]) -> Iterator[Metric]:
    closed = Gauge(
        "penstock_gate_closed",
        "1 if `operator`, `spend` or `breaker` closed the queue's gate.",
        labels=["queue", "reason"],
    )
    scope = ["scope", "name"]
    flight = Gauge(
        "penstock_gate_in_flight",
        "Admitted messages under way, of a `queue` and of all queues of a `provider`.",
        labels=scope,
    )
    window = [*scope, "unit", "window_seconds"]
    limit = Gauge("penstock_gate_window_limit", "Requests or tokens allowed in a sliding window.", labels=window)
    used = Gauge("penstock_gate_window_used", "Requests or tokens used in a sliding window.", labels=window)
    providers = set()
    for queue in queues:
        state = gates.gate(context, queue.name).inspect()
        for reason in _CLOSED_BY:
            closed.put((queue.name, reason), state.closed_by == reason)
        loads = [("queue", queue.name, state.queue)]
        if queue.provider not in providers:
            providers.add(queue.provider)
            loads.append(("provider", queue.provider, state.provider))
        for kind, name, load in loads:
            flight.put((kind, name), load.in_flight)
            for usage in load.windows:
                labels = (kind, name, usage.window.unit, f"{usage.window.window_s:g}")
                limit.put(labels, usage.window.limit)
                used.put(labels, usage.used)
    yield from (closed, flight, limit, used)


def _breakers(context: Context) -> Iterator[Metric]:
    by = ["provider", "capability"]
    state = Gauge(
        "penstock_breaker_state", "1 for the breaker's state: `closed`, `open` or `half-open`.", labels=[*by, "state"]
    )
    failures = Gauge("penstock_breaker_failures", "Failures in a row that a closed breaker counts.", labels=by)
    for name in context.gates.breakers:
        breaker = gates.breaker(context, name).inspect()
        provider, _, capability = name.partition(":")
        for possible in _STATES:
            state.put((provider, capability, possible), breaker.state == possible)
        failures.put((provider, capability), breaker.failures)
    yield from (state, failures)


def _spent(context: Context, queues: list[GatedQueue]) -> Iterator[Metric]:
    spent = Gauge(
        "penstock_provider_spent_today", "Cost of a provider's calls since its day began.", labels=["provider"]
    )
    for provider in sorted({queue.provider for queue in queues}):
        spent.put((provider,), running_sum(context, provider, context.settings.providers[provider]))
    yield spent


def _workers(context: Context) -> Iterator[Metric]:
    alive = Gauge("penstock_workers", "Live workers, by role: the part of their names before the `@`.", labels=["role"])
    counted = dict.fromkeys(needed(context.settings), 0)
    for worker in sorted(Presence(context.redis).alive()):
        role, at, _ = worker.partition("@")
        role = role if at and (role in counted or len(counted) < _MOST_ROLES) else _OTHERS
        counted[role] = counted.get(role, 0) + 1
    for role, count in counted.items():
        alive.put((role,), count)
    yield alive


def _server(context: Context) -> Iterator[Metric]:
    swept = Gauge("penstock_sweep_age_seconds", "Seconds since the last sweep ended; none if unknown.")
    age_s = last_sweep_s(context.redis)
    if age_s is not None:
        swept.put((), age_s)
    memory = Gauge("penstock_redis_memory_bytes", "Memory that Redis uses.")
    memory.put((), float(context.redis.info("memory")["used_memory"]))
    yield from (swept, memory)
