"""Which queue a step of a batch goes to, and who is asked by a message from there."""

from dataclasses import dataclass

from pipeline.flows.music.live_settings import EMBEDDING_ONLY, METADATA_GENERATION, METADATA_ONLY
from pipeline.flows.music.states import Mode, Step
from pipeline.providers import fallbacks
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

CONTROL = "control"
"""Work that takes a moment and calls nobody."""
METADATA_STEPS = (Step.METADATA, Step.REPAIR)
"""Steps for which a fallback may stand in. Embedding waits for its own provider: vectors of another model could not be
compared with those that are there."""


def queue_of(settings: Settings, mode: Mode, step: Step) -> str:
    """The queue of a step. Without a provider, vectors are made on a queue without a gate.

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
    """Where messages go now. `stand_in`: who writes metadata instead of the configured provider, or empty."""

    settings: Settings
    stand_in: str

    def queue(self, mode: Mode, step: Step) -> str:
        """The queue for a step of a batch: the stand-in's while the provider's breaker is open."""
        if self.stand_in and step in METADATA_STEPS:
            return fallbacks.stand_in_queue(self.stand_in)
        return queue_of(self.settings, mode, step)


def current_routes(context: Context) -> Routes:
    """Where messages go now, as the breakers stand."""
    own = context.settings.music.provider
    writer = fallbacks.stand_in(context, own, "text", local=False) if own else own
    return Routes(context.settings, "" if writer == own else writer)


def needed_queues(routes: Routes, mode: Mode) -> set[str]:
    """The queues that a run of this mode needs now."""
    steps = {Mode.METADATA: [Step.METADATA], Mode.EMBEDDING: [Step.EMBED]}.get(mode, [Step.METADATA, Step.EMBED])
    return {routes.queue(mode, step) for step in steps}


def fallback_of(settings: Settings) -> str:
    """The service that may stand in for the provider of metadata; empty if there is none."""
    profile = settings.providers.get(settings.music.provider)
    return profile.fallback if profile is not None and profile.fallback != LOCAL else ""


def metadata_provider(context: Context, queue: str) -> tuple[str, str]:
    """(provider, model) that a message from this queue asks for metadata; a stand-in is asked by its own model."""
    provider, own = context.gates.queues[queue].provider, context.settings.music
    return provider, own.model if provider == own.provider else ""
