"""The messages of `penstock screenshots add` while it waits."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import process
from pipeline.flows.screenshots import status
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.views import Retry
from pipeline.interfaces.cli.progress import Progress
from pipeline.interfaces.cli.screenshots.intake import keep


def test_the_reason_for_waiting_batches_is_shown_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    retries = [Retry("batch", 2, 53.4, "eye cannot be reached"), Retry("merge", 1, 0, "no concern of these frames")]
    monkeypatch.setattr(process, "get_context", lambda: None)
    monkeypatch.setattr(status, "retries", lambda _: retries)
    stack: Any = SimpleNamespace(ensure=bool, trouble=str)
    progress = Progress(stack, interrupted="")
    progress.state = {1: WorkStatus.RUNNING}
    keep(progress)
    assert capsys.readouterr().err == "", "a success was reported as a failure"
    progress.state = {1: WorkStatus.FAILED}
    keep(progress)
    retries[0] = Retry("batch", 1, 12, "eye cannot be reached")
    keep(progress)
    note = "Note: 2 batches wait for another try, the next in 53 s: eye cannot be reached\n"
    assert capsys.readouterr().err == note
