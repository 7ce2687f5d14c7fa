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
"""The worker in claims, as `Driver` calls it."""
_MAX_ROUNDS = 20


def work_off(context: Context) -> None:
    """Handle all messages of screenshots."""
    driver = Driver(context)
    for _ in range(_MAX_ROUNDS):
        for source, _ in plan.buffers(context, plan.ready_buffers(context)):
            buffer.batch(context, source)
        plan.take_turns(context)
        found = plan.next_steps(context, batch_ids(plan.runnable(context, ())))
        for one in found:
            if one.action is Action.EXPAND or _analysed(driver, one.batch_id):
                driver.expand(one.batch_id)
        driver.join(alone=True)
        while merge.waiting(context):
            driver.join()
        if not found:
            return


def _analysed(driver: Driver, batch_id: int) -> bool:
    begun = analysis.claim(driver.context, batch_id)
    for _ in range(begun.due if begun is not None else 0):
        while driver.analyse(batch_id).requeue:
            pass
    return analysis.settle(driver.context, batch_id).status is WorkStatus.PENDING


if __name__ == "__main__":
    import tests.faults.screenshots.killing  # noqa: F401  # arms itself

    work_off(get_context())
