"""The overview of the whole system, for `penstock status`, the API and the console's first page."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import PlainSerializer
from redis import RedisError

from pipeline.engine.backlog import Failure
from pipeline.engine.connection import reach
from pipeline.engine.metrics import Minute, Throughput
from pipeline.engine.nouns import duration
from pipeline.engine.presence import Presence, last_sweep_s, served
from pipeline.engine.wire import HIDDEN, VIEW
from pipeline.flows import flows
from pipeline.flows.documents import backlog
from pipeline.operations.backlog import Reason, failures, reasons
from pipeline.operations.workers import Worker, workers
from pipeline.providers import gates, queue_views, spend
from pipeline.providers.queue_views import QueueView
from pipeline.storage.context import Context

FAILURES, COUNTED_FAILURES = 8, 100
OVERDUE_S = 120.0
"""The last sweep raises an alarm at this age, or at six sweep intervals if they are longer."""


@dataclass(frozen=True)
class Fleet:
    """The state of the fleet, from Redis."""

    __pydantic_config__ = VIEW
    queues: dict[str, int]
    """The number of waiting messages by queue."""
    workers: Annotated[list[Worker], PlainSerializer(len, int)]
    """The live workers; an answer holds their number."""
    closed: list[str]
    """Sentences about the closed gates."""
    last_sweep_s: float | None
    """Seconds since the last sweep; None: unknown."""
    gates: Annotated[dict[str, QueueView], HIDDEN]
    """The state of all queues, by name."""
    sweep_problem: str = ""
    """Why the claims of lost workers are not given back, and what to do; empty if sweeps run."""

    @property
    def served(self) -> set[str] | None:
        """The queues that live workers consume, empty without workers; None (unknown) if a worker does not report its
        queues."""
        return served(worker.queues for worker in self.workers)


@dataclass(frozen=True)
class Spending:
    """The cost of a provider's calls since its day began."""

    __pydantic_config__ = VIEW
    provider: str
    today: float
    """The cost today, by the provider's price list."""
    cap: float
    """The amount at which its queues close until the day ends; 0: no cap."""
    resets_at: datetime
    """The end of its day."""
    is_priced: Annotated[bool, HIDDEN] = True
    """Whether its model has a price. Without a price, the cost of its calls is unknown and counts as zero."""


@dataclass(frozen=True)
class Overview:
    """The state of the whole system."""

    __pydantic_config__ = VIEW
    counted: dict[str, dict[str, dict[str, int]]]
    """The number of rows by flow, kind and state."""
    last_hour: Throughput
    """The throughput of the documents flow."""
    fleet: Fleet | None
    """null: Redis is down, so the state is unknown."""
    spending: list[Spending]
    """The cost of each provider today."""
    waiting: list[Reason]
    """The reasons why units of all flows wait; the reason of most units first."""
    minutes: list[Minute]
    """Pages in each minute of the last hour, oldest first."""
    failures: list[Failure]
    """The newest failures of all flows."""
    recent_failures: Annotated[int, HIDDEN] = 0
    """The number of failures of the last hour in all flows, at most `COUNTED_FAILURES`."""

    @property
    def is_empty(self) -> bool:
        """Whether the database holds no work of any flow."""
        return not any(
            count for kinds in self.counted.values() for states in kinds.values() for count in states.values()
        )


def overview(context: Context) -> Overview:
    """Return the state of the whole system."""
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
        sum(failure.at > since for failure in failed),
    )


def spending(context: Context) -> list[Spending]:
    """Return today's cost of each provider that messages call, by name, with the spend cap in force, which may be 0
    (none)."""
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
    """Return a sentence if workers run but the last sweep ended too long ago, else "". Raises `RedisError`."""
    age_s = last_sweep_s(context.redis)
    if age_s is not None and age_s <= max(OVERDUE_S, 6 * context.settings.sweep_interval_s):
        return ""
    if not Presence(context.redis).alive():
        return ""  # no worker runs: another message reports that, and explains the missing sweep
    last = "No sweep is on record" if age_s is None else f"The last sweep ended {duration(age_s)} ago"
    return f"{last}: the claims of lost workers are not given back. Make sure that beat runs (`penstock beat`)."


def fleet(context: Context) -> Fleet | None:
    """Return the state of the fleet; None, at once, if Redis is down."""
    if not context.online:
        return None
    try:
        reach(context.settings.effective_redis_url)
        views = queue_views.queues(context)
        gated = context.gates.queues
        return Fleet(
            {view.name: view.waiting for view in views},
            workers(context),
            [reason for name in gated if (reason := gates.closed_because(context, name))],
            last_sweep_s(context.redis),
            {view.name: view for view in views},
            sweep_problem(context),
        )
    except RedisError:
        return None
