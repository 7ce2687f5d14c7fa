"""A worker without Celery that dies at the point `KILL_AT`: `python -m tests.faults.screenshots.doomed`.

It handles the canvas's messages one after another; another process continues by calling `work_off` again.
"""

from pipeline.flows.screenshots import plan
from pipeline.flows.screenshots.frames import buffer
from pipeline.flows.screenshots.plan import Action
from pipeline.flows.screenshots.scopes import batch_ids
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import analysis, merge
from pipeline.process import get_context
from pipeline.storage.context import Context
from tests.support.screens import Driver

NAME = "w"
"""The name of `Driver`'s worker in claims."""
_MAX_ROUNDS = 20


def work_off(context: Context) -> None:
    """Handle all messages of screenshots."""
    driver = Driver(context)
    for _ in range(_MAX_ROUNDS):
        for source, _ in plan.buffers(context, plan.ready_buffers(context)):
            buffer.batch(context, source)
        plan.take_turns(context)
        steps = plan.next_steps(context, batch_ids(plan.runnable(context, ())))
        for step in steps:
            if step.action is Action.EXPAND or _analysed(driver, step.batch_id):
                driver.expand(step.batch_id)
        driver.join(alone=True)
        while merge.waiting(context):
            driver.join()
        if not steps:
            return


def _analysed(driver: Driver, batch_id: int) -> bool:
    claimed = analysis.claim(driver.context, batch_id)
    for _ in range(claimed.due if claimed is not None else 0):
        while driver.analyse(batch_id).requeue:
            pass
    return analysis.settle(driver.context, batch_id).status is WorkStatus.PENDING


if __name__ == "__main__":
    import tests.faults.screenshots.killing  # noqa: F401  # the import arms it

    work_off(get_context())
