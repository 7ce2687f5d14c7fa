"""`FLOW`, the flow's functions for the engine. It imports the whole flow, so few modules import it."""

from pipeline.flows.flow import Flow
from pipeline.flows.webhooks import backlog, plan, service
from pipeline.flows.webhooks.models import DELIVERIES, ENDPOINTS
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.flows.webhooks.work.delivery import WORK

FLOW = Flow(
    name="webhooks",
    due=plan.due,
    next_wait_s=plan.next_wait_s,
    works=(WORK,),
    runnable=plan.runnable,
    anything=plan.ANYTHING,
    retained=service.retained,
    waiting=backlog.waiting,
    failures=backlog.failures,
    followed={"webhook_deliveries": (DELIVERIES, DeliveryStatus)},
    ids={"endpoints": ENDPOINTS.c.id},
    has_subscribers=plan.has_subscribers,
)
