"""What a transaction asks for is sent after its commit: once, and never after a rollback."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError

from pipeline.engine.transaction import Dispatch, Tx
from pipeline.storage.context import Context


class Launcher:
    """Records its arguments, and whether the transaction had ended."""

    def __init__(self) -> None:
        self.sent: list[Dispatch] = []
        self.open = 0

    def __call__(self, _context: Context, dispatch: Dispatch) -> None:
        assert not self.open
        self.sent.append(dispatch)


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def of_one(context: Context, launcher: Launcher) -> Context:
    return replace(context, launcher=launcher)


def test_what_a_transaction_asks_for_is_sent_once_after_its_commit(of_one: Context, launcher: Launcher) -> None:
    def work(tx: Tx) -> None:
        launcher.open += 1
        tx.launch("documents", "a", "b")
        tx.launch("documents", "b", "c")
        tx.wake_in("documents", 9.0)
        tx.wake_in("documents", 5.0)
        tx.wake_in("documents", None)
        launcher.open -= 1

    of_one.db.run(work)
    [sent] = launcher.sent
    assert list(sent.launches["documents"]) == ["a", "b", "c"]
    assert sent.wakes_s == {"documents": 5.0}
    of_one.db.dispose()


def test_nothing_is_sent_after_a_rollback_or_for_a_transaction_that_asks_for_nothing(
    of_one: Context, launcher: Launcher
) -> None:
    def work(tx: Tx) -> None:
        tx.launch("documents", "a")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        of_one.db.run(work)
    of_one.db.run(lambda tx: tx.now)
    assert launcher.sent == []
    of_one.db.dispose()


def test_what_an_earlier_try_asked_for_is_sent_too_since_it_may_have_been_committed(
    of_one: Context, launcher: Launcher
) -> None:
    tries = 0

    def work(tx: Tx) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            tx.launch("documents", "a")
            raise OperationalError("COMMIT", None, Exception("connection lost"))

    of_one.db.run(work)
    [sent] = launcher.sent
    assert list(sent.launches["documents"]) == ["a"]
    of_one.db.dispose()
