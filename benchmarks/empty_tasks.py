"""A Celery application with Penstock's own lanes over pages without work, and a plain chord as the yardstick.

`celery -A benchmarks.empty_tasks worker`: `documents.lane` is production's own task. In this process a conversion that
returns at once replaces the conversion of a page.
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
    """Converts a page to nothing at once."""

    def convert(self, unit: PageUnit) -> Attempt:
        return Attempt(unit, _NOTHING, model=LOCAL)


patch.object(page_lane, "PageConversion", NoConversion).start()


@app.task(name="benchmark.unit")
def unit(number: int) -> int:
    """Do nothing: a unit of a plain chord is one message without state."""
    return number


@app.task(name="benchmark.done", ignore_result=True)
def done(token: str) -> None:
    """Announce that all units of the chord have ended."""
    get_context().redis.rpush(f"benchmark:{token}", 1)
