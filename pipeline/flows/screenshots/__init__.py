"""Screenshots: frames become segments, segments become nodes of a graph that can be searched. Source 000."""

from pipeline.flows.flow import Flow
from pipeline.flows.screenshots import live, recovery, upkeep
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.states import WorkStatus

FLOW = Flow(
    name="screenshots",
    claimed=(BATCHES, SHARDS, NODES),
    due=upkeep.due,
    next_wait_s=upkeep.next_wait_s,
    free_lost=upkeep.free_lost,
    release=recovery.release_worker,
    clean_up=upkeep.clean_up,
    gated_queues=live.gated_queues,
    live_settings=live.live_settings,
    followed={"screenshots": (SHOTS, WorkStatus), "screenshot_batches": (BATCHES, WorkStatus)},
)
