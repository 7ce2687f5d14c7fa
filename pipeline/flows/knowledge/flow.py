"""`FLOW`: the functions and tables that this flow offers to the engine. Importing it loads the whole flow."""

from pipeline.flows.flow import Flow
from pipeline.flows.knowledge import backlog, deletion, plan, service
from pipeline.flows.knowledge.models import ITEMS
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.work.batch import EMBED
from pipeline.flows.knowledge.work.content import READ
from pipeline.flows.knowledge.work.publication import WRITE

FLOW = Flow(
    name="knowledge",
    due=plan.due,
    next_wait_s=plan.next_wait_s,
    works=(READ, EMBED, WRITE),
    runnable=plan.runnable,
    anything=plan.ANYTHING,
    fail_unserved=backlog.fail_unserved,
    unfinished=service.unfinished,
    clean_up=deletion.remove_orphans,
    waiting=backlog.waiting,
    failures=backlog.failures,
    followed={"items": (ITEMS, ItemStatus)},
    ids={"items": ITEMS.c.id, "groups": ITEMS.c.group_id},
)
