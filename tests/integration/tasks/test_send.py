"""What a message's transactions ask for is sent when it has left its place: once, however many they are."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine.transaction import Dispatch
from pipeline.storage.context import Context
from tasks import flow


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Dispatch]:
    found: list[Dispatch] = []
    tasks = SimpleNamespace(send=lambda _context, dispatch: found.append(dispatch))
    monkeypatch.setattr(flow, "flow_tasks", lambda _flow: tasks)
    return found


def test_two_transactions_of_a_message_are_one_launch_at_its_end(context: Context, sent: list[Dispatch]) -> None:
    @flow.once
    def message(_task: Any) -> None:
        for scope in ("a", "b", "a"):
            context.db.run(lambda tx, scope=scope: tx.launch("documents", scope))
        assert sent == []

    message(SimpleNamespace(request=SimpleNamespace(id="m", chain=None)))
    assert [list(one.launches["documents"]) for one in sent] == [["a", "b"]]


def test_what_was_committed_before_a_message_failed_is_sent_all_the_same(
    context: Context, sent: list[Dispatch]
) -> None:
    @flow.once
    def message(_task: Any) -> None:
        context.db.run(lambda tx: tx.launch("documents", "a"))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        message(SimpleNamespace(request=SimpleNamespace(id="m", chain=None)))
    assert len(sent) == 1


def test_one_flow_that_cannot_be_sent_keeps_no_other_from_it(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def tasks(name: str) -> Any:
        if name == "music":
            raise RuntimeError
        return SimpleNamespace(send=lambda _context, _dispatch: found.append(name))

    monkeypatch.setattr(flow, "flow_tasks", tasks)
    asked = Dispatch()
    asked.launch("music", ["a"])
    asked.launch("documents", ["b"])
    flow.send(context, asked)
    assert found == ["documents"]
