"""How everything stands: what `penstock status` shows, the API tells, and the console begins with."""

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
    """What Redis knows."""

    __pydantic_config__ = VIEW
    queues: dict[str, int]
    """Messages that wait, by queue."""
    workers: Annotated[list[Worker], PlainSerializer(len, int)]
    """Those that live; an answer says how many."""
    closed: list[str]
    """Gates that let nothing through, in words."""
    last_sweep_s: float | None
    """How long ago the sweeper last went round; None if that is not known."""
    gates: Annotated[dict[str, QueueView], HIDDEN]
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

    __pydantic_config__ = VIEW
    provider: str
    today: float
    """By its price list."""
    cap: float
    """At which its queues close until the day ends; 0: none."""
    resets_at: datetime
    """When its day ends."""
    is_priced: Annotated[bool, HIDDEN] = True
    """Whether its model has a price: without one, the cost of its calls is unknown and counts as zero."""


@dataclass(frozen=True)
class Overview:
    """How everything stands."""

    __pydantic_config__ = VIEW
    counted: dict[str, dict[str, dict[str, int]]]
    """Flow → what people follow of it → how many are in which state."""
    last_hour: Throughput
    """Of the documents flow."""
    fleet: Fleet | None
    """null: Redis is down, so the state is unknown."""
    spending: list[Spending]
    """What each provider cost today."""
    waiting: list[Reason]
    """Why units of all flows wait; the reason of most of them first."""
    minutes: list[Minute]
    """Pages in each minute of the last hour, the oldest first."""
    failures: list[Failure]
    """The newest, of all flows."""
    recent_failures: Annotated[int, HIDDEN] = 0
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
        reach(context.settings.effective_redis_url)
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
