"""The registry of gated queues, their breakers and the live settings, as the flows declare them."""

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
    """The name of the queue for one capability of a provider, such as `vision.openai`. Each provider has its own, so
    that a closed one never holds up another's work."""
    return f"{capability}.{provider}"


@dataclass(frozen=True)
class GatedQueue:
    """A queue whose messages call one provider."""

    name: str
    provider: str
    capability: str
    limits: str = ""
    """Limits of this queue, beside its provider's, unless a live setting replaces them."""
    limits_setting: str = ""
    """A live setting, in messages a minute, that overrides `limits`."""
    concurrency: int = 0
    """The most concurrent calls of this queue, unless a live setting replaces it; 0: as its provider allows."""

    @property
    def breaker(self) -> str:
        """The name of the breaker that closes this queue."""
        return f"{self.provider}:{self.capability}"


@dataclass(frozen=True)
class Declaration:
    """A flow's queues and settings, without its kinds of work."""

    gated_queues: Callable[[Settings], list[GatedQueue]] = lambda _: []
    """The flow's own queues whose messages call a provider."""
    settings: Callable[[Settings], Any] = lambda _: None
    """Reads the flow's own section of the settings; `pipeline.settings.SECTIONS` lists it."""
    live_settings: Callable[[Settings], dict[str, Live]] = lambda _: {}
    """Live settings by key."""


class GateRegistry:
    """The gates of these flows under these settings. Every message reads them, so each table is built once."""

    def __init__(self, flows: Iterable[Declaration], settings: Settings) -> None:
        self._flows = tuple(flows)
        self._settings = settings

    @cached_property
    def queues(self) -> Mapping[str, GatedQueue]:
        """Every queue with a gate, by name: one for each provider, and those of the flows."""
        gated = [GatedQueue(queue_name("vision", name), name, "vision") for name in sorted(self._settings.providers)]
        for flow in self._flows:
            gated += flow.gated_queues(self._settings)
        return MappingProxyType({queue.name: queue for queue in gated})

    @cached_property
    def names(self) -> list[str]:
        """Every queue of the workers; queues without a gate first."""
        return [*PLAIN, *self.queues]

    @cached_property
    def providers(self) -> list[str]:
        """The names of the providers that messages call."""
        return sorted({queue.provider for queue in self.queues.values()})

    @cached_property
    def breakers(self) -> list[str]:
        """The names of all breakers."""
        return sorted({queue.breaker for queue in self.queues.values()})

    def closed_by(self, breaker: str) -> list[str]:
        """The names of the queues whose gates close while this breaker is open."""
        return [queue.name for queue in self.queues.values() if queue.breaker == breaker]

    def calling(self, provider: str) -> list[str]:
        """The names of the queues whose messages call a provider."""
        return [queue.name for queue in self.queues.values() if queue.provider == provider]

    def require(self, queue: str) -> GatedQueue:
        """A queue by its name. Raises `UserError` for a queue without a gate."""
        if queue not in self.queues:
            names = ", ".join(sorted(self.queues)) or "none, since no provider is configured"
            raise UserError(f"{queue} is not a queue with a gate; these are: {names}", code="unknown_queue")
        return self.queues[queue]

    @cached_property
    def live_settings(self) -> Mapping[str, Live]:
        """The declaration of every live setting, by key: its default, not the value in force."""
        settings = self._settings
        all_ = live.of_fields("api", settings.api, settings.api.LIVE)
        for flow in self._flows:
            all_ |= flow.live_settings(settings)
        for provider in self.providers:
            profile = settings.providers[provider]
            all_ |= _limits_of(f"provider.{provider}", windows(profile.limits), 0)
            all_[f"provider.{provider}.daily_spend_cap"] = Live(
                "most to spend in a day: then the provider's queues close until the next; 0: no cap",
                amount,
                profile.daily_spend_cap,
            )
        for queue in self.queues.values():
            all_ |= _limits_of(f"queue.{queue.name}", windows(queue.limits), queue.concurrency)
        return MappingProxyType(all_)


def _limits_of(scope: str, limits: str, concurrency: int) -> dict[str, Live]:
    scope_name = "all queues of the provider together" if scope.startswith("provider.") else "this queue alone"
    return {
        f"{scope}.limits": Live(f"calls or tokens in a window, {scope_name}: 10/s, 100000 tokens/min", windows, limits),
        f"{scope}.concurrency": Live(f"concurrent calls, {scope_name}; 0: no limit", whole(0, 10_000), concurrency),
    }
