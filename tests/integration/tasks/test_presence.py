"""A worker's processes are present while they run; their claims are given back after their end."""

import os
import subprocess
from collections.abc import Iterator

import pytest

import tasks.presence
from pipeline.engine.claims import Owner, left_behind
from pipeline.engine.presence import Presence
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.models import PAGES
from pipeline.storage.context import Context
from tasks.presence import Identity
from tests.support.documents import Worker, insert_document, pages
from tests.support.waiting import wait_until

WITHIN_S = 30


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PRESENCE_INTERVAL_S": "0.02"}


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A child process, as in a pool."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def _of(identity: Identity, process: subprocess.Popen[bytes]) -> str:
    hostname, _, nonce = identity.worker_id.rsplit(":", 2)
    return f"{hostname}:{process.pid}:{nonce}"


def _lives(presence: Presence, process: str) -> bool:
    presence.missed_twice({process})
    return not presence.missed_twice({process})


def test_the_process_of_a_pool_of_threads_is_the_worker() -> None:
    identity = Identity()
    assert identity.process_id == identity.worker_id
    assert not identity.has_ended(identity.process_id)


def test_only_processes_of_this_worker_are_known_to_have_ended(child: subprocess.Popen[bytes]) -> None:
    identity = Identity()
    process = _of(identity, child)
    stranger = _of(Identity(), child)
    assert not identity.has_ended(process)
    child.kill()
    # First as a zombie, then after its parent has waited for it.
    wait_until(lambda: identity.has_ended(process), WITHIN_S, "the zombie counts as ended")
    child.wait()
    assert identity.has_ended(process)
    assert not identity.has_ended(stranger), "another worker's process may run on another host"
    assert not identity.has_ended("holder")


def test_the_main_process_renews_its_pool_and_drops_a_process_that_has_ended(
    context: Context, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.presence.keep_synced", lambda _stopped: None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    identity, presence = Identity(), Presence(context.redis)
    children, fails = tasks.presence._children, iter([True])

    def failing() -> list[int]:
        if next(fails, False):
            raise OSError("too many open files")
        return children()

    monkeypatch.setattr("tasks.presence._children", failing)
    identity.begin("w@here")
    process = _of(identity, child)
    wait_until(lambda: _lives(presence, process), WITHIN_S, "its presence is renewed after a failed round")
    assert presence.alive() == {identity.worker_id}, "a process of the pool does not count as a worker"
    context.redis.flushall()
    wait_until(lambda: _lives(presence, process), WITHIN_S, "its presence is renewed after Redis was emptied")
    child.kill()
    wait_until(
        lambda: not _lives(presence, process), WITHIN_S, "the killed process is missed long before its lease ends"
    )
    assert _lives(presence, identity.worker_id)
    identity._end(os.getpid())
    assert presence.alive() == set()


def test_a_redelivered_message_takes_no_claim_from_a_living_process(
    context: Context, child: subprocess.Popen[bytes]
) -> None:
    identity = Identity()
    document_id = insert_document(context)
    holders = {
        name: Worker(context, document_id, name, owner=Owner(name, "lane:message"))
        for name in (_of(identity, child), _of(Identity(), child), identity.process_id)
    }
    units = {name: worker.claim()[0] for name, worker in holders.items()}
    own = units[identity.process_id].claim_id
    sibling = units[_of(identity, child)].claim_id
    redelivered = Owner(identity.process_id, "lane:message", identity.has_ended)
    with context.db.read() as session:
        assert left_behind(session, PAGES, redelivered) == [own]
        child.kill()
        child.wait()
        assert left_behind(session, PAGES, redelivered) == sorted([own, sibling])
        assert left_behind(session, PAGES, Owner(identity.process_id, "lane:another", identity.has_ended)) == []


def test_an_ending_worker_gives_back_the_claims_of_all_its_processes(
    context: Context, child: subprocess.Popen[bytes]
) -> None:
    identity, stranger = Identity(), Identity()
    document_id = insert_document(context)
    for holder in (identity.process_id, _of(identity, child), _of(stranger, child)):
        assert Worker(context, document_id, holder).claim()
    identity._end(os.getpid())
    assert FLOW.holders(context) == {_of(stranger, child)}
    assert [page.attempts for page in pages(context, document_id)] == [0, 0, 1]
