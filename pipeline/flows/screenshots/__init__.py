"""Screenshots: frames become segments, segments become nodes of a graph that can be searched. Source 000."""

from pipeline.flows.flow import Flow
from pipeline.flows.screenshots import live_settings, plan, recovery
from pipeline.flows.screenshots.frames import files, retention
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.states import WorkStatus

FLOW = Flow(
    name="screenshots",
    claimed=(BATCHES, SHARDS, NODES),
    due=plan.due,
    next_wait_s=plan.next_wait_s,
    release_lost=lambda context, absent: list(plan.Scope) if recovery.release_lost(context, absent) else [],
    release=recovery.release_workers,
    clean_up=files.remove_orphans,
    retained=retention.retained,
    gated_queues=live_settings.gated_queues,
    live_settings=live_settings.live_settings,
    followed={"screenshots": (SHOTS, WorkStatus), "screenshot_batches": (BATCHES, WorkStatus)},
)
