"""Which queue a page goes to, and how many lanes a document may have there."""

from collections.abc import Collection

from sqlalchemy import ColumnElement

from pipeline.flows.documents.models import PAGES
from pipeline.providers import fallbacks, gates
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

CPU = "cpu"
"""Work that needs a core: prefork workers."""


def queue_of(provider: str) -> str:
    """`cpu`, or the provider's own queue, behind its gate."""
    return CPU if provider == LOCAL else gates.queue_name("vision", provider)


def provider_of(queue: str) -> str:
    """The provider that lanes of this queue ask."""
    return LOCAL if queue == CPU else queue.partition(".")[2]


def stand_in(context: Context, provider: str) -> str:
    """Who converts pages of `provider` now: its fallback while its breaker is open and the fallback's is not."""
    return fallbacks.stand_in(context, provider, "vision", local=True)


def served_by(context: Context, queue: str) -> list[str]:
    """The providers whose pages lanes of this queue may take now."""
    own = provider_of(queue)
    fallen = [name for name in sorted(context.settings.providers) if name != own and stand_in(context, name) == own]
    return [own, *fallen]


def of_providers(providers: Collection[str]) -> ColumnElement[bool]:
    """Pages of these providers."""
    return PAGES.c.provider.in_(providers)


def width(settings: Settings, provider: str) -> int:
    """Lanes that one document may have for pages of this provider."""
    profile = settings.providers.get(provider)
    return profile.concurrency if profile else settings.documents.converter_count


def quantum_s(settings: Settings, queue: str) -> float:
    """How long a lane goes on before it yields; 0 on queues that may be rate-limited: one unit a message."""
    return settings.documents.quantum_s if queue == CPU else 0.0
