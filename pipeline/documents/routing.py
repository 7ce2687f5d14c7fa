"""Which queue a page goes to, and how many lanes a document may have there."""

from sqlalchemy import ColumnElement

from pipeline.documents.models import PAGES
from pipeline.settings import LOCAL, Settings

CPU = "cpu"
"""Work that needs a core: prefork workers."""
VISION = "vision"
"""Work that waits for an AI service: threads workers."""


def queue_of(provider: str) -> str:
    return CPU if provider == LOCAL else VISION


def on_queue(queue: str) -> ColumnElement[bool]:
    """The pages that lanes of this queue may take."""
    return PAGES.c.provider == LOCAL if queue == CPU else PAGES.c.provider != LOCAL


def width(settings: Settings, provider: str) -> int:
    """Lanes that one document may have for pages of this provider."""
    profile = settings.providers.get(provider)
    return profile.concurrency if profile else settings.documents.converter_count


def quantum_s(settings: Settings, queue: str) -> float:
    """How long a lane goes on before it yields; 0 on queues that may be rate-limited: one unit a message."""
    return settings.documents.quantum_s if queue == CPU else 0.0
