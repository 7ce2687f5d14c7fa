"""Lying nodes: the caller nevertheless gets the answer of an honest node."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from pipeline.nodes.protocol import CloseCode
from tests.faults.nodes.fleet import Fleet
from tests.support.gateway import Got, RawNode, RawSession

pytestmark = pytest.mark.faults
MAX_BYTES = 100_000


def _refused(liar: RawNode) -> None:
    assert liar.until("result_received")["taken"] is False


def _closed(liar: RawNode, *codes: int) -> None:
    assert liar.until("never").code in codes


def another_job(liar: RawNode, job: Got) -> None:
    liar.send({"type": "job_result", "job_id": "another", "attempt": 1, "result": {"text": "lie"}})
    _refused(liar)


def another_attempt(liar: RawNode, job: Got) -> None:
    liar.send({"type": "job_result", "job_id": job["job_id"], "attempt": 2, "result": {"text": "lie"}})
    _refused(liar)


def too_late(liar: RawNode, job: Got) -> None:
    assert liar.until("job_cancel")["attempt"] == 1
    liar.answer(job, "lie")
    _refused(liar)


def another_version(liar: RawNode, job: Got) -> None:
    liar.say("job_result", job, v=2, result={"text": "lie"})
    _closed(liar, CloseCode.VERSION)


def a_huge_frame(liar: RawNode, job: Got) -> None:
    liar.answer(job, "lie" * MAX_BYTES)
    _closed(liar, CloseCode.TOO_LARGE, 1009)


def huge_attachments(liar: RawNode, job: Got) -> None:
    liar.say("job_result", job, result={"text": "lie"}, attachments=[{"size": 2**40}])
    _closed(liar, CloseCode.TOO_LARGE)


def missing_attachments(liar: RawNode, job: Got) -> None:
    liar.say("job_result", job, result={"text": "lie"}, attachments=[{"size": 3}])
    liar.send({"type": "node_heartbeat"})
    _closed(liar, CloseCode.BAD_MESSAGE)


def no_such_model(liar: RawNode, job: Got) -> None:
    liar.say("job_result", job, error={"code": "MODEL_NOT_AVAILABLE", "message": "it was removed"})
    assert liar.until("result_received")["taken"] is True


LIES: list[Callable[[RawNode, Got], None]] = [
    another_job,
    another_attempt,
    too_late,
    another_version,
    a_huge_frame,
    huge_attachments,
    missing_attachments,
    no_such_model,
]
SILENT = {"another_job", "another_attempt", "too_late"}
"""Lies after which the node sends nothing about the job."""
PATIENT = {"COOL_DOWN_MS": "600000", "HEARTBEAT_MS": "2000", "OWNER_TTL_SECONDS": "6"}
"""A node that dropped a job gets no job before the honest node connects, on any machine."""


def test_lying_nodes_do_not_change_the_answer_of_an_honest_node(fleet: Fleet) -> None:
    fleet.start("a", MAX_MESSAGE_BYTES=str(MAX_BYTES), **PATIENT)
    [url] = fleet.urls
    names = [lie.__name__ for lie in LIES]
    with ExitStack() as closing:
        asker = closing.enter_context(RawSession(url, fleet.session_token))
        liars = [closing.enter_context(RawNode(url, fleet.node_token, name, offers=_offers(name))) for name in names]
        for name in names:
            asker.ask(name, model=name, **({"attempt_timeout_ms": 2000} if name in SILENT else {}))
        jobs = [liar.job() for liar in liars]
        for lie, liar, job in zip(LIES, liars, jobs, strict=True):
            lie(liar, job)
        honest = closing.enter_context(
            RawNode(url, fleet.node_token, "honest", slots=len(LIES), offers=_offers(*names))
        )
        for _ in names:
            assert honest.answer_next("honest")["attempt"] == 2
        answers = [asker.result() for _ in names]
        assert {answer["request_id"] for answer in answers} == set(names)
        assert {(answer["node_id"], answer["result"]["text"]) for answer in answers} == {("honest", "honest")}
        assert asker.nothing_comes()
        fleet.wait_until_quiet()


def _offers(*models: str) -> list[dict[str, object]]:
    return [{"capability": "text", "models": list(models)}]
