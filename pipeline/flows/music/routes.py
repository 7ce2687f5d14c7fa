"""Which queue a step of a batch goes to, and who is asked by a message from there."""

from dataclasses import dataclass

from pipeline.flows.music.live import EMBEDDING_ONLY, METADATA_GENERATION, METADATA_ONLY
from pipeline.flows.music.states import Mode, Step
from pipeline.providers import fallbacks, gates
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

CONTROL = "control"
"""Work that takes a moment and calls nobody."""
WRITING = (Step.METADATA, Step.REPAIR)
"""Steps that ask the provider of metadata. Another may stand in there; vectors of another model are never mixed in,
for they could not be compared with those that there are."""


def queue_of(settings: Settings, mode: Mode, step: Step) -> str:
    """The queue of a step: source 002, section 1. Vectors without a provider are made where there is no gate."""
    match step:
        case Step.METADATA | Step.REPAIR:
            return METADATA_ONLY if mode is Mode.METADATA else METADATA_GENERATION
        case Step.EMBED:
            return EMBEDDING_ONLY if settings.music.embeddings_provider else CONTROL
        case Step.SAVE:
            return CONTROL


@dataclass(frozen=True)
class Routes:
    """Where messages go now. `writer`: who writes metadata now; `shut`: queues behind an open breaker."""

    settings: Settings
    writer: str
    shut: frozenset[str]

    @property
    def stand_in(self) -> str:
        """Who writes metadata instead of the provider that is configured; empty: nobody."""
        return "" if self.writer == self.settings.music.provider else self.writer

    @property
    def queues(self) -> list[str]:
        """Every queue that a message may be sent to now."""
        own = [CONTROL, METADATA_GENERATION, METADATA_ONLY, EMBEDDING_ONLY]
        return [*own, fallbacks.stand_in_queue(self.stand_in)] if self.stand_in else own

    def queue(self, mode: Mode, step: Step) -> str:
        """The queue for a step of a batch: the stand-in's while the provider's breaker is open."""
        if self.stand_in and step in WRITING:
            return fallbacks.stand_in_queue(self.stand_in)
        return queue_of(self.settings, mode, step)

    def astray(self, queue: str, mode: Mode, step: Step) -> bool:
        """Whether a message that waits in `queue` waits behind an open breaker, while another queue is open to it."""
        return step in WRITING and queue in self.shut and queue != self.queue(mode, step)


def routes(context: Context) -> Routes:
    """Where messages go now, by the breakers."""
    settings = context.settings
    own = settings.music.provider
    writer = fallbacks.stand_in(context, own, "text", local=False) if own else own
    shut: set[str] = set()
    if own and gates.is_open(context, own, "text"):
        shut |= {METADATA_GENERATION, METADATA_ONLY}
    other = fallback_of(settings)
    if other and gates.is_open(context, other, fallbacks.STAND_IN_CAPABILITY):
        shut.add(fallbacks.stand_in_queue(other))
    return Routes(settings, writer, frozenset(shut))


def fallback_of(settings: Settings) -> str:
    """The service that may stand in for the provider of metadata; empty if there is none."""
    profile = settings.providers.get(settings.music.provider)
    return profile.fallback if profile is not None and profile.fallback != LOCAL else ""


def writer_of(settings: Settings, queue: str) -> tuple[str, str]:
    """(provider, model) that a message from this queue asks for metadata; a stand-in is asked by its own model."""
    provider = gates.gated_queues(settings)[queue].provider
    return provider, settings.music.model if provider == settings.music.provider else ""
