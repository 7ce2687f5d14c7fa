"""How everything stands: what `penstock status` shows, the API tells, and the console begins with."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from redis import RedisError

from pipeline.engine.backlog import Failure
from pipeline.engine.metrics import Minute, Throughput
from pipeline.engine.presence import Presence, last_sweep_s, served
from pipeline.flows import flows
from pipeline.flows.documents import backlog
from pipeline.interfaces.backlog import Reason, failures, reasons
from pipeline.interfaces.console.words import duration
from pipeline.interfaces.workers import Worker, workers
from pipeline.providers import gates, queue_views, spend
from pipeline.providers.queue_views import QueueView
from pipeline.standalone.stack import reach_redis
from pipeline.storage.context import Context

FAILURES, COUNTED_FAILURES = 8, 100
OVERDUE_S = 120.0
"""The last sweep raises an alarm at this age, or at six sweep intervals if they are longer."""


@dataclass(frozen=True)
class Fleet:
    """What Redis knows."""

    queues: dict[str, int]
    """Messages that wait, by queue."""
    workers: list[Worker]
    """Those that live."""
    closed: list[str]
    """Gates that let nothing through, in words."""
    last_sweep_s: float | None
    """How long ago the sweeper last went round; None if that is not known."""
    gates: dict[str, QueueView]
    """All queues as they stand, by name."""
    sweep_problem: str = ""
    """Why the work of lost workers is not released, and what to do; empty if the sweeper runs."""

    @property
    def served(self) -> set[str] | None:
        """The queues that running workers consume; None if one of them does not name its queues."""
        return served(worker.queues for worker in self.workers)


@dataclass(frozen=True)
class Spending:
    """What a provider's calls cost since its day began, by its price list. `cap` 0: no cap."""

    provider: str
    today: float
    cap: float
    resets_at: datetime
    is_priced: bool = True
    """Whether its model has a price: without one, the cost of its calls is unknown and counts as zero."""


@dataclass(frozen=True)
class Overview:
    """`fleet`: None if Redis is down. `counted`: flow → what people follow of it → how many by state."""

    counted: dict[str, dict[str, dict[str, int]]]
    last_hour: Throughput
    """Of the documents flow."""
    fleet: Fleet | None
    spending: list[Spending]
    waiting: list[Reason]
    """Why units wait, the reason of most of them first."""
    minutes: list[Minute]
    """Pages in each minute of the last hour, the oldest first."""
    failures: list[Failure]
    """The newest, of all flows."""
    recent_failures: int = 0
    """Of the last hour, of all flows; at most `COUNTED_FAILURES`."""

    @property
    def is_empty(self) -> bool:
        """Nothing was ever submitted."""
        return not any(
            count for kinds in self.counted.values() for states in kinds.values() for count in states.values()
        )


def overview(context: Context) -> Overview:
    """How everything stands."""
    failed, since = failures(context, COUNTED_FAILURES), context.db.now() - timedelta(hours=1)
    counted, runs = {flow.name: flow.figures(context) for flow in flows()}, fleet(context)
    return Overview(
        counted,
        backlog.last_hour(context),
        runs,
        spending(context),
        reasons(context, runs.gates if runs else None, runs.served if runs else None),
        backlog.pages_by_minute(context),
        failed[:FAILURES],
        sum(one.at > since for one in failed),
    )


def spending(context: Context) -> list[Spending]:
    """What each provider cost today, with the cap in force."""
    values, now = gates.live_values(context), context.db.now()
    return [
        Spending(
            name,
            spend.spent_today(context, name, profile),
            float(values[key].value or 0),
            spend.next_reset(profile, now),
            profile.kind == "nodes" or bool(profile.price(profile.model)),
        )
        for name, profile in sorted(context.settings.providers.items())
        if (key := f"provider.{name}.daily_spend_cap") in values
    ]


def sweep_problem(context: Context) -> str:
    """A sentence if workers run but the last sweep ended too long ago, else empty. Raises `RedisError`."""
    age_s = last_sweep_s(context.redis)
    if age_s is not None and age_s <= max(OVERDUE_S, 6 * context.settings.sweep_interval_s):
        return ""
    if not Presence(context.redis).alive():
        return ""  # no worker runs: another message reports that, and explains the missing sweep
    last = "No sweep is on record" if age_s is None else f"The last sweep ended {duration(age_s)} ago"
    return f"{last}: nothing gives back what lost workers held. See that beat runs (`penstock beat`)."


def fleet(context: Context) -> Fleet | None:
    """What Redis knows; None if it is down, at once."""
    if not context.online:
        return None
    try:
        reach_redis(context.settings)
        found = queue_views.queues(context)
        gated = context.gates.queues
        return Fleet(
            {view.name: view.waiting for view in found},
            workers(context),
            [reason for name in gated if (reason := gates.closed_because(context, name))],
            last_sweep_s(context.redis),
            {view.name: view for view in found},
            sweep_problem(context),
        )
    except RedisError:
        return None
