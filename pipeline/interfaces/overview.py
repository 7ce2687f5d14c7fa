"""How everything stands: what `penstock status` shows and the API tells."""

from dataclasses import dataclass
from datetime import datetime

from redis import RedisError

from pipeline.engine.metrics import Throughput, queue_depths
from pipeline.engine.presence import Presence, last_sweep_s
from pipeline.flows import flows
from pipeline.providers import gates, spend
from pipeline.standalone.stack import reach_redis
from pipeline.storage.context import Context


@dataclass(frozen=True)
class Fleet:
    """What Redis knows."""

    queues: dict[str, int]
    """Messages that wait, by queue."""
    workers: list[str]
    """Those that live, by `name@host:process:nonce`."""
    closed: list[str]
    """Gates that let nothing through, in words."""
    last_sweep_s: float | None
    """How long ago the sweeper last went round; None if that is not known."""


@dataclass(frozen=True)
class Spending:
    """What a provider's calls cost since its day began, by its price list. `cap` 0: no cap."""

    provider: str
    today: float
    cap: float
    resets_at: datetime


@dataclass(frozen=True)
class Overview:
    """`fleet`: None if Redis is down. `counted`: flow → what people follow of it → how many by state."""

    counted: dict[str, dict[str, dict[str, int]]]
    last_hour: Throughput
    """Of the documents flow."""
    fleet: Fleet | None
    spending: list[Spending]


def overview(context: Context) -> Overview:
    """How everything stands."""
    from tasks.documents import figures  # noqa: PLC0415  # imports Celery, which not all who import this need

    counted = {flow.name: flow.figures(context) for flow in flows()}
    return Overview(counted, figures().last_hour, fleet(context), spending(context))


def spending(context: Context) -> list[Spending]:
    """What each provider cost today, with the cap in force."""
    values, now = gates.live_values(context), context.db.now()
    return [
        Spending(
            name, spend.spent_today(context, name, profile), float(values[key].value or 0),
            spend.next_reset(profile, now),
        )
        for name, profile in sorted(context.settings.providers.items())
        if (key := f"provider.{name}.daily_spend_cap") in values
    ]  # fmt: skip


def fleet(context: Context) -> Fleet | None:
    """What Redis knows; None if it is down, at once."""
    from tasks.app import configuration  # noqa: PLC0415  # imports Celery

    if not context.online:
        return None
    try:
        reach_redis(context.settings)
        gated = gates.gated_queues(context.settings)
        names = dict.fromkeys([*(queue.name for queue in configuration().task_queues), *gated])
        return Fleet(
            queue_depths(context.redis, names),
            sorted(Presence(context.redis).alive()),
            [reason for name in gated if (reason := gates.closed_because(context, name))],
            last_sweep_s(context.redis),
        )
    except RedisError:
        return None
