"""A Celery application with Penstock's own lanes over pages that cost nothing, and a plain chord to compare with.

`celery -A benchmarks.empty_tasks worker`: `documents.lane` is production's own task; only the conversion of a page is
replaced, in this process alone, by one that returns at once.
"""

from unittest.mock import patch

from pipeline.flows.documents.work import page_lane
from pipeline.flows.documents.work.conversion import PageConversion
from pipeline.flows.documents.work.page import Attempt, PageUnit
from pipeline.process import get_context
from pipeline.providers.protocols import Answer
from pipeline.settings import LOCAL
from tasks.app import app

_NOTHING = Answer(text="", model=LOCAL)


class NoConversion(PageConversion):
    """Returns at once."""

    def convert(self, unit: PageUnit) -> Attempt:
        return Attempt(unit, _NOTHING, model=LOCAL)


patch.object(page_lane, "PageConversion", NoConversion).start()


@app.task(name="benchmark.unit")
def unit(number: int) -> int:
    """A unit of a plain chord: one message, no state."""
    return number


@app.task(name="benchmark.done", ignore_result=True)
def done(token: str) -> None:
    """The body of a chord: all units have ended."""
    get_context().redis.rpush(f"benchmark:{token}", 1)
