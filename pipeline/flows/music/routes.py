"""The queue of each step of a batch, and the provider that its messages call."""

from dataclasses import dataclass

from pipeline.flows.music.live_settings import EMBEDDING_ONLY, METADATA_GENERATION, METADATA_ONLY
from pipeline.flows.music.states import Mode, Step
from pipeline.providers import fallbacks
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

CONTROL = "control"
"""The queue for short work without calls."""
METADATA_STEPS = (Step.METADATA, Step.REPAIR)
"""Steps for which a fallback may stand in. Embedding waits for its own provider, since vectors of different models are
not comparable."""


def queue_of(settings: Settings, mode: Mode, step: Step) -> str:
    """Return the queue of a step. Without a provider of embeddings, vectors come from a queue without a gate.

    Rule: docs/sources/music.md#queues.
    """
    match step:
        case Step.METADATA | Step.REPAIR:
            return METADATA_ONLY if mode is Mode.METADATA else METADATA_GENERATION
        case Step.EMBED:
            return EMBEDDING_ONLY if settings.music.embeddings_provider else CONTROL
        case Step.SAVE:
            return CONTROL


@dataclass(frozen=True)
class Routes:
    """The current routes of messages. `stand_in`: the provider that stands in for the one of metadata, or empty."""

    settings: Settings
    stand_in: str

    def queue(self, mode: Mode, step: Step) -> str:
        """Return the queue for a step of a batch: the stand-in's while the provider's breaker is open."""
        if self.stand_in and step in METADATA_STEPS:
            return fallbacks.stand_in_queue(self.stand_in)
        return queue_of(self.settings, mode, step)


def current_routes(context: Context) -> Routes:
    """Return the routes by the current state of the breakers."""
    own = context.settings.music.provider
    writer = fallbacks.stand_in(context, own, "text", local=False) if own else own
    return Routes(context.settings, "" if writer == own else writer)


def needed_queues(routes: Routes, mode: Mode) -> set[str]:
    """Return the queues that a run of this mode needs now."""
    steps = {Mode.METADATA: [Step.METADATA], Mode.EMBEDDING: [Step.EMBED]}.get(mode, [Step.METADATA, Step.EMBED])
    return {routes.queue(mode, step) for step in steps}


def fallback_of(settings: Settings) -> str:
    """Return the name of the provider that may stand in for the provider of metadata; empty without one."""
    profile = settings.providers.get(settings.music.provider)
    return profile.fallback if profile is not None and profile.fallback != LOCAL else ""


def metadata_provider(context: Context, queue: str) -> tuple[str, str]:
    """Return the (provider, model) that this queue's messages call for metadata. Empty model: the provider's own."""
    provider, own = context.gates.queues[queue].provider, context.settings.music
    return provider, own.model if provider == own.provider else ""
