"""`FLOW`: the functions and tables that this flow offers to the engine. Importing it loads the whole flow."""

from pipeline.flows.documents import backlog, plan, queries, recovery
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.work import text_index
from pipeline.flows.documents.work.document import MERGE, SPLIT
from pipeline.flows.documents.work.page import CONVERT, charge
from pipeline.flows.flow import Flow

FLOW = Flow(
    name="documents",
    due=plan.due,
    next_wait_s=plan.next_wait_s,
    works=(SPLIT, CONVERT, MERGE),
    runnable=plan.runnable,
    anything=plan.ANYTHING,
    fail_unserved=recovery.fail_unserved,
    charge=charge,
    unfinished=queries.unfinished,
    clean_up=recovery.remove_orphans,
    catch_up=text_index.catch_up,
    retained=recovery.retained,
    waiting=backlog.waiting,
    failures=backlog.failures,
    followed={"documents": (DOCUMENTS, DocumentStatus), "pages": (PAGES, PageStatus)},
    counted={"pages": queries.count_pages},
    ids={"documents": DOCUMENTS.c.id},
)
