"""Which queues have a gate, which breaker closes each, and which live settings there are: as the flows declare it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pipeline.engine import live_settings as live
from pipeline.engine.errors import UserError
from pipeline.engine.live_settings import Live, amount, whole, windows
from pipeline.settings import Settings

PLAIN = ("maintenance", "control", "cpu", "io", "capture")
"""Queues without a gate."""


def queue_name(capability: str, provider: str) -> str:
    """A queue for each provider: one that is closed never keeps another's work waiting."""
    return f"{capability}.{provider}"


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


class GateRegistry:
    """The gates of these flows under these settings. Read as often as messages arrive, so each table is made once."""

    def __init__(self, flows: Iterable[Declaration], settings: Settings) -> None:
        self._flows = tuple(flows)
        self._settings = settings

    @cached_property
    def queues(self) -> Mapping[str, GatedQueue]:
        """Every queue with a gate, by name: one for each provider, and those of the flows."""
        found = [GatedQueue(queue_name("vision", name), name, "vision") for name in sorted(self._settings.providers)]
        for flow in self._flows:
            found += flow.gated_queues(self._settings)
        return MappingProxyType({queue.name: queue for queue in found})

    @cached_property
    def names(self) -> list[str]:
        """Every queue that workers know: those without a gate first."""
        return [*PLAIN, *self.queues]

    @cached_property
    def providers(self) -> list[str]:
        """The providers that messages call."""
        return sorted({queue.provider for queue in self.queues.values()})

    @cached_property
    def breakers(self) -> list[str]:
        """The names of all breakers."""
        return sorted({queue.breaker for queue in self.queues.values()})

    def closed_by(self, breaker: str) -> list[str]:
        """The queues that a breaker closes."""
        return [queue.name for queue in self.queues.values() if queue.breaker == breaker]

    def calling(self, provider: str) -> list[str]:
        """The queues whose messages call a provider."""
        return [queue.name for queue in self.queues.values() if queue.provider == provider]

    def require(self, queue: str) -> GatedQueue:
        """A queue by its name. Raises `UserError` for one without a gate."""
        if queue not in self.queues:
            names = ", ".join(sorted(self.queues)) or "none, since no provider is configured"
            raise UserError(f"{queue} is not a queue with a gate; these are: {names}", code="unknown_queue")
        return self.queues[queue]

    @cached_property
    def live_settings(self) -> Mapping[str, Live]:
        """Every live setting there is."""
        settings = self._settings
        found = live.of_fields("api", settings.api, settings.api.LIVE)
        for flow in self._flows:
            found |= flow.live_settings(settings)
        for provider in self.providers:
            profile = settings.providers[provider]
            found |= _limits_of(f"provider.{provider}", windows(profile.limits), 0)
            found[f"provider.{provider}.daily_spend_cap"] = Live(
                "spent in a day, the provider's queues close until the next; 0: no cap", amount, profile.daily_spend_cap
            )
        for queue in self.queues.values():
            found |= _limits_of(f"queue.{queue.name}", windows(queue.limits), queue.concurrency)
        return MappingProxyType(found)


def _limits_of(scope: str, limits: str, concurrency: int) -> dict[str, Live]:
    whom = "all queues of the provider together" if scope.startswith("provider.") else "this queue alone"
    return {
        f"{scope}.limits": Live(f"calls or tokens in a window, {whom}: 10/s, 100000 tokens/min", windows, limits),
        f"{scope}.concurrency": Live(f"calls under way at once, {whom}; 0: no limit", whole(0, 10_000), concurrency),
    }
