"""A Celery application with Penstock's own lanes over pages that cost nothing, and a plain chord to compare with.

`celery -A benchmarks.empty_tasks worker`: `documents.lane` is production's own task; only the conversion of a page is
replaced, in this process alone, by one that returns at once.
"""

from pipeline.flows.documents.work.page import Outcome, PageUnit
from pipeline.flows.documents.work.page_lane import PageWork
from pipeline.providers.protocols import Answer
from pipeline.settings import LOCAL
from pipeline.storage.context import get_context
from tasks.app import app
from tasks.documents import canvas

_NOTHING = Answer(text="", model=LOCAL)


class EmptyWork(PageWork):
    """Claims and settles pages; converts none."""

    def perform(self, unit: PageUnit) -> Outcome:
        return Outcome(unit, _NOTHING, model=LOCAL)


canvas.PageWork = EmptyWork  # type: ignore[attr-defined]


@app.task(name="benchmark.unit")
def unit(number: int) -> int:
    """A unit of a plain chord: one message, no state."""
    return number


@app.task(name="benchmark.done", ignore_result=True)
def done(token: str) -> None:
    """The body of a chord: all units have ended."""
    get_context().redis.rpush(f"benchmark:{token}", 1)
