"""How an item of a knowledge base stands, in a colour, a word and a reason."""

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
    Activity.WAITING: "tried again later",
    Activity.STALLED: "nobody is at it: it is an orphan, until a worker runs or it is recovered",
}


class Shown(NamedTuple):
    """What is shown of it."""

    css: str
    words: str
    why: str


def shown(item: ItemView, standing: Standing | None) -> Shown:
    """How an item stands. That it is being deleted goes before all else."""
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
