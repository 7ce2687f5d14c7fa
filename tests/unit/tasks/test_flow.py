"""The results of tasks, for monitors."""

import pytest

from pipeline.engine.settled import Settled
from pipeline.flows.screenshots.states import WorkStatus
from tasks.flow import summary


@pytest.mark.parametrize(
    ("settled", "text"),
    [
        (Settled(2), "2 batches"),
        (Settled(1, status=WorkStatus.SUCCEEDED), "1 batch"),
        (Settled(status=WorkStatus.FAILED_PERMANENT), "failed permanent"),
        (Settled(status=WorkStatus.FAILED, retry_in_s=59.6), "failed, retry in 60 s"),
        (Settled(), "nothing to do"),
    ],
)
def test_a_tasks_result_sums_up_its_work(settled: Settled, text: str) -> None:
    assert summary(settled, "batch") == text
