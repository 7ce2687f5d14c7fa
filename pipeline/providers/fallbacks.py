"""Choose a stand-in for a provider while its breaker is open: the same rule for every flow."""

from pipeline.engine.gate_registry import queue_name
from pipeline.providers import gates
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

STAND_IN_CAPABILITY = "vision"
"""Calls to a stand-in use its own queue, `vision.NAME`, and obey that queue's breaker."""


def stand_in_queue(provider: str) -> str:
    """Return the gated queue for calls to a provider that stands in for another."""
    return queue_name(STAND_IN_CAPABILITY, provider)


def stand_in(context: Context, provider: str, capability: str, *, local: bool) -> str:
    """Return the provider that does `provider`'s work now: its fallback while its own breaker is open and the
    fallback's is not, else `provider`.

    `local`: whether the work can be done without any service; otherwise a provider that falls back to `local` waits.
    """
    profile = context.settings.providers.get(provider)
    if profile is None or not profile.fallback or not gates.is_open(context, provider, capability):
        return provider
    if profile.fallback == LOCAL:
        return LOCAL if local else provider
    open_too = gates.is_open(context, profile.fallback, STAND_IN_CAPABILITY)
    return provider if open_too else profile.fallback
