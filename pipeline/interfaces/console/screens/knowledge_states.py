"""The state of an item of a knowledge base: a colour, a word and a reason."""

from typing import NamedTuple

from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.views import Activity, ItemView, Standing

_WORDS = {
    ItemStatus.PENDING: ("waiting", "waiting"),
    ItemStatus.PREPROCESSING: ("working", "being read"),
    ItemStatus.EMBEDDING: ("working", "being embedded"),
    ItemStatus.COMPLETED: ("done", "searchable"),
    ItemStatus.FAILED: ("failed", "failed"),
}
ACTIVITY = {
    Activity.IN_LINE: "in line",
    Activity.QUEUED: "waits for a worker",
    Activity.RUNNING: "",
    Activity.WAITING: "to be retried",
    Activity.STALLED: "an orphan without worker or message, until a worker runs or you recover it",
}


class Shown(NamedTuple):
    """The state as a page shows it."""

    css: str
    words: str
    why: str


def shown(item: ItemView, standing: Standing | None) -> Shown:
    """Return the state of an item; its deletion overrides every other state."""
    if item.deleting:
        return Shown("paused", "being deleted", "")
    css, words = _WORDS[item.status]
    if item.at_rest:
        return Shown(css, words, item.error or item.warning or "")
    place = f"number {standing.place:,} of this base" if standing and standing.place else ""
    match standing and standing.activity:
        case Activity.IN_LINE:
            return Shown("waiting", "in line", place)
        case Activity.STALLED:
            return Shown("failed", "stalled", ", ".join(filter(None, [ACTIVITY[Activity.STALLED], place])))
        case Activity.QUEUED | Activity.WAITING as activity:
            return Shown("waiting", words, (standing.reason if standing else "") or ACTIVITY[activity])
    return Shown(css, words, "")
