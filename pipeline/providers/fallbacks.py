"""Who stands in for a provider while its breaker is open: the same rule for every flow."""

from pipeline.engine.gate_registry import queue_name
from pipeline.providers import gates
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

STAND_IN_CAPABILITY = "vision"
"""A stand-in is called from its own queue, `vision.NAME`, and stopped by that queue's breaker."""


def stand_in_queue(provider: str) -> str:
    """The gated queue for calls to a provider that stands in for another one."""
    return queue_name(STAND_IN_CAPABILITY, provider)


def stand_in(context: Context, provider: str, capability: str, *, local: bool) -> str:
    """Who does `provider`'s work now: its fallback if its breaker is open and the fallback's is not.

    `local`: whether the work can be done without any service; if not, a provider that falls back to that waits.
    """
    profile = context.settings.providers.get(provider)
    if profile is None or not profile.fallback or not gates.is_open(context, provider, capability):
        return provider
    if profile.fallback == LOCAL:
        return LOCAL if local else provider
    open_too = gates.is_open(context, profile.fallback, STAND_IN_CAPABILITY)
    return provider if open_too else profile.fallback
