"""Which queue a step goes to now."""

from dataclasses import dataclass

from pipeline.flows.screenshots.live import SCREENSHOT_EMBEDDINGS, SCREENSHOT_TEXT, SCREENSHOT_VISION
from pipeline.flows.screenshots.states import Step
from pipeline.providers import fallbacks, gates
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

CONTROL = "control"
"""Work that takes a moment and calls nobody."""
CPU = "cpu"
"""Text recognition here, if no provider looks at frames."""


@dataclass(frozen=True)
class Routes:
    """Where messages go now. `shut`: queues behind an open breaker, whose messages may go elsewhere meanwhile."""

    analyse: str
    expand: str
    embed: str
    shut: frozenset[str] = frozenset()

    @property
    def merge(self) -> str:
        """Where two nodes are merged: who expands merges too."""
        return self.expand

    def queue(self, step: Step) -> str:
        """The queue of a batch's step."""
        return self.analyse if step is Step.ANALYSE else self.expand

    def astray(self, queue: str, step: Step) -> bool:
        """Whether a message that waits in `queue` waits behind an open breaker while another queue is open to it."""
        return queue in self.shut and queue != self.queue(step)


def routes(context: Context) -> Routes:
    """Where messages go now, by the breakers.

    Frames wait for a provider that is down, unless another, or this machine, stands in. What the text model would do
    is done without it meanwhile (source 000, section 6.2), for it only adds to what is known.
    """
    own = context.settings.screenshots
    shut: set[str] = set()
    analyse = expand = CONTROL
    if not own.vision_provider:
        analyse = CPU
    else:
        if gates.is_open(context, own.vision_provider, "vision"):
            shut.add(SCREENSHOT_VISION)
        looks = fallbacks.stand_in(context, own.vision_provider, "vision", local=True)
        named = {LOCAL: CPU, own.vision_provider: SCREENSHOT_VISION}
        analyse = named.get(looks) or fallbacks.stand_in_queue(looks)
    if own.text_provider:
        if gates.is_open(context, own.text_provider, "text"):
            shut.add(SCREENSHOT_TEXT)
        writes = fallbacks.stand_in(context, own.text_provider, "text", local=False)
        if writes != own.text_provider:
            expand = fallbacks.stand_in_queue(writes)
        elif SCREENSHOT_TEXT not in shut:
            expand = SCREENSHOT_TEXT
    embed = SCREENSHOT_EMBEDDINGS if own.embeddings_provider else CONTROL
    return Routes(analyse, expand, embed, frozenset(shut))
