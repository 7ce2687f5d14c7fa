"""The launches of a transaction are sent once after its commit, and never after a rollback."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError

from pipeline.engine.transaction import Dispatch, Tx
from pipeline.storage.context import Context


class Launcher:
    """A launcher that records dispatches and requires that their transactions have ended."""

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
def recording(context: Context, launcher: Launcher) -> Context:
    return replace(context, launcher=launcher)


def test_launches_of_a_transaction_are_sent_once_after_its_commit(recording: Context, launcher: Launcher) -> None:
    def work(tx: Tx) -> None:
        launcher.open += 1
        tx.launch("documents", "a", "b")
        tx.launch("documents", "b", "c")
        tx.wake_in("documents", 9.0)
        tx.wake_in("documents", 5.0)
        tx.wake_in("documents", None)
        launcher.open -= 1

    recording.db.run(work)
    [sent] = launcher.sent
    assert list(sent.launches["documents"]) == ["a", "b", "c"]
    assert sent.wakes_s == {"documents": 5.0}
    recording.db.dispose()


def test_no_message_is_sent_after_a_rollback_or_without_launches(recording: Context, launcher: Launcher) -> None:
    def work(tx: Tx) -> None:
        tx.launch("documents", "a")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        recording.db.run(work)
    recording.db.run(lambda tx: tx.now)
    assert launcher.sent == []
    recording.db.dispose()


def test_launches_of_a_failed_try_are_sent_since_it_may_have_committed(recording: Context, launcher: Launcher) -> None:
    tries = 0

    def work(tx: Tx) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            tx.launch("documents", "a")
            raise OperationalError("COMMIT", None, Exception("connection lost"))

    recording.db.run(work)
    [sent] = launcher.sent
    assert list(sent.launches["documents"]) == ["a"]
    recording.db.dispose()
