"""`FLOW`, the flow's functions for the engine. It imports the whole flow, so few modules import it."""

from pipeline.flows.flow import Flow
from pipeline.flows.screenshots import costs, plan, status
from pipeline.flows.screenshots.frames import files, retention
from pipeline.flows.screenshots.graph.models import THREADS
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import embedding, expansion, merge, shard

FLOW = Flow(
    name="screenshots",
    works=(shard.WORK, expansion.WORK, merge.WORK, embedding.WORK),
    due=plan.due,
    next_wait_s=plan.next_wait_s,
    runnable=plan.runnable,
    anything=plan.ANYTHING,
    unfinished=costs.unfinished,
    clean_up=files.remove_orphans,
    retained=retention.retained,
    waiting=status.waiting,
    failures=status.failures,
    followed={"screenshots": (SHOTS, WorkStatus), "screenshot_batches": (BATCHES, WorkStatus)},
    ids={"threads": THREADS.c.id},
)
