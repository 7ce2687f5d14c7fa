"""The launches that a message's transactions request are sent together, when the message has left its place."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine.transaction import Dispatch
from pipeline.storage.context import Context
from tasks import flow


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Dispatch]:
    dispatches: list[Dispatch] = []
    tasks = SimpleNamespace(send=lambda _context, dispatch: dispatches.append(dispatch))
    monkeypatch.setattr(flow, "flow_tasks", lambda _flow: tasks)
    return dispatches


def test_transactions_of_a_message_cause_one_launch_at_its_end(context: Context, sent: list[Dispatch]) -> None:
    @flow.once
    def message(_task: Any) -> None:
        for scope in ("a", "b", "a"):
            context.db.run(lambda tx, scope=scope: tx.launch("documents", scope))
        assert sent == []

    message(SimpleNamespace(request=SimpleNamespace(id="m", chain=None)))
    assert [list(dispatch.launches["documents"]) for dispatch in sent] == [["a", "b"]]


def test_work_committed_before_a_message_failed_is_sent(context: Context, sent: list[Dispatch]) -> None:
    @flow.once
    def message(_task: Any) -> None:
        context.db.run(lambda tx: tx.launch("documents", "a"))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        message(SimpleNamespace(request=SimpleNamespace(id="m", chain=None)))
    assert len(sent) == 1


def test_a_flow_that_cannot_be_sent_does_not_block_others(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def tasks(name: str) -> Any:
        if name == "music":
            raise RuntimeError
        return SimpleNamespace(send=lambda _context, _dispatch: sent.append(name))

    monkeypatch.setattr(flow, "flow_tasks", tasks)
    dispatch = Dispatch()
    dispatch.launch("music", ["a"])
    dispatch.launch("documents", ["b"])
    flow.send(context, dispatch)
    assert sent == ["documents"]
