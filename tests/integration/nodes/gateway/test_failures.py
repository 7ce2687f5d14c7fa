"""Nodes that fail, lie, fall silent or come back; sessions that come back; a Redis that forgets."""

from contextlib import ExitStack

from pipeline.nodes.job import JobState
from pipeline.storage.context import Context
from tests.integration.nodes.gateway.conftest import Node, Session, Start
from tests.support.gateway import GatewayThread, Got
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until


def test_a_node_that_takes_too_long_is_left_for_another_and_its_late_result_is_dropped(
    gateway: GatewayThread, node: Node, session: Session
) -> None:
    slow, asker = node(gateway, "slow"), session(gateway)
    asker.ask(attempt_timeout_ms=400, timeout_ms=20_000)
    first = slow.job()
    quick = node(gateway, "quick")
    second = quick.job()
    assert (second["job_id"], second["attempt"]) == (first["job_id"], 2)
    assert slow.until("job_cancel")["attempt"] == 1
    slow.answer(first, "late")
    assert slow.until("result_received")["taken"] is False
    quick.answer(second, "in time")
    got = asker.result()
    assert (got["result"], got["attempt"], got["node_id"]) == ({"text": "in time"}, 2, "quick")


def test_after_the_last_attempt_the_job_fails_and_says_why(start: Start, node: Node, session: Session) -> None:
    gateway = start(max_attempts=2, cool_down_ms=10)
    asker = session(gateway)
    one = node(gateway)
    asker.ask(attempt_timeout_ms=200, timeout_ms=20_000)
    assert [one.job()["attempt"], one.job()["attempt"]] == [1, 2]
    error = asker.result()["error"]
    assert (error["code"], error["message"]) == ("timed_out", "node n1 did not answer in 0.2 s")


def test_a_node_that_is_gone_loses_its_job_to_another(gateway: GatewayThread, node: Node, session: Session) -> None:
    one, asker = node(gateway), session(gateway)
    asker.ask()
    first = one.job()
    one.drop()
    other = node(gateway, "n2")
    assert other.answer_next()["attempt"] == first["attempt"] + 1
    assert asker.result()["node_id"] == "n2"


def test_a_silent_node_is_sent_away(start: Start, node: Node) -> None:
    gateway = start(heartbeat_ms=100)
    one = node(gateway, heartbeat_s=0)
    end = one.until("never")
    assert (end.code, end.reason) == (4408, "the client was silent for too long")


def test_heartbeats_keep_a_node(start: Start, node: Node, session: Session) -> None:
    gateway = start(heartbeat_ms=700)
    one, asker = node(gateway, heartbeat_s=0), session(gateway)
    for _ in range(5):  # longer than the silence after which it would be sent away
        one.send({"type": "node_heartbeat"})
        assert one.nothing_comes(0.5)
    asker.ask()
    assert one.job()


def test_a_node_that_comes_back_goes_on_with_its_jobs(gateway: GatewayThread, node: Node, session: Session) -> None:
    one, asker = node(gateway), session(gateway)
    asker.ask()
    job = one.job()
    one.drop()
    back = node(gateway, held=[{"job_id": job["job_id"], "attempt": 1}])
    back.answer(job, "kept")
    got = asker.result()
    assert (got["result"], got["attempt"]) == ({"text": "kept"}, 1)


def test_a_node_that_comes_back_without_its_job_gets_it_again(
    gateway: GatewayThread, node: Node, session: Session
) -> None:
    one, asker = node(gateway), session(gateway)
    asker.ask()
    job = one.job()
    one.drop()
    back = node(gateway)
    again = back.job()
    assert (again["job_id"], again["attempt"]) == (job["job_id"], 2)
    back.answer(again)
    assert asker.result()["attempt"] == 2


def test_a_reconnecting_node_is_told_to_cancel_obsolete_jobs(gateway: GatewayThread, node: Node) -> None:
    one = node(gateway, held=[{"job_id": "unheard-of", "attempt": 3}])
    cancelled = one.until("job_cancel")
    assert (cancelled["job_id"], cancelled["attempt"]) == ("unheard-of", 3)


def test_a_model_that_is_not_there_is_looked_for_elsewhere(
    gateway: GatewayThread, node: Node, session: Session
) -> None:
    liar, asker = node(gateway, "liar"), session(gateway)
    asker.ask(timeout_ms=20_000)
    _say_missing(liar, liar.job())
    assert liar.until("result_received")["taken"] is True
    honest = node(gateway, "honest")
    assert honest.answer_next()["attempt"] == 2
    assert asker.result()["node_id"] == "honest"
    asker.ask()
    assert honest.answer_next(), "the other is left alone for a while, though it has a free slot"
    assert liar.nothing_comes()


def _say_missing(node: object, job: Got) -> None:
    error = {"code": "MODEL_NOT_AVAILABLE", "message": "it was removed"}
    node.say("job_result", job, error=error)  # type: ignore[attr-defined]


def test_a_job_comes_back_to_a_busy_node_as_often_as_it_takes(start: Start, node: Node, session: Session) -> None:
    gateway = start(max_attempts=1)
    one, asker = node(gateway), session(gateway)
    asker.ask(timeout_ms=20_000)
    for attempt in (1, 2):
        job = one.job()
        assert job["attempt"] == attempt
        one.say("job_result", job, error={"code": "NODE_BUSY", "message": "all slots are taken"})
    one.answer_next()
    assert asker.result()["result"] == {"text": "done"}


def test_a_node_cannot_answer_the_job_of_another_node(gateway: GatewayThread, node: Node, session: Session) -> None:
    one, liar, asker = node(gateway), node(gateway, "liar", offers=[{"capability": "vision"}]), session(gateway)
    asker.ask()
    job = one.job()
    liar.answer(job, "forged")
    assert liar.until("result_received")["taken"] is False
    liar.say("job_started", job)
    liar.say("job_partial", job, text="forged")
    one.answer(job, "true")
    assert asker.result()["result"] == {"text": "true"}


def test_a_result_sent_twice_counts_once(gateway: GatewayThread, node: Node, session: Session) -> None:
    one, asker = node(gateway), session(gateway)
    asker.ask()
    job = one.job()
    one.answer(job, "first")
    one.answer(job, "second")
    assert asker.result()["result"] == {"text": "first"}
    assert asker.nothing_comes()


def test_a_session_that_comes_back_gets_the_answer_that_came_meanwhile(
    gateway: GatewayThread, node: Node, session: Session, closing: ExitStack
) -> None:
    one, asker = node(gateway), session(gateway)
    request = asker.ask()
    job = one.job()
    asker.drop()
    one.answer(job)
    one.until("result_received")
    back = session(gateway, asker.id)
    back.ask(request)
    assert back.result()["result"] == {"text": "done"}


def test_a_redis_that_was_emptied_ends_jobs_with_an_error_and_serves_new_ones(
    gateway: GatewayThread, node: Node, session: Session, state_server: RedisServer
) -> None:
    one, asker = node(gateway), session(gateway)
    asker.ask(timeout_ms=20_000)
    job = one.job()
    state_server.flush()
    error = asker.result()["error"]
    assert (error["code"], error["kind"]) == ("state_lost", "transient")
    assert one.until("job_cancel")["job_id"] == job["job_id"]
    one.answer(job)
    assert one.until("result_received")["taken"] is False
    asker.ask(timeout_ms=20_000)
    one.answer_next()
    assert asker.result()["result"] == {"text": "done"}


def test_a_redis_that_restarts_loses_nothing(
    gateway: GatewayThread, node: Node, session: Session, state_server: RedisServer, context: Context
) -> None:
    one, asker = node(gateway), session(gateway)
    asker.ask(timeout_ms=60_000)
    job = one.job()
    wait_until(
        lambda: gateway.do(gateway.instance.jobs.get(job["job_id"])).state is JobState.DISPATCHED,
        60,
        "it is stored",
    )
    state_server.kill()
    one.answer(job, "while it was away")
    state_server.start()
    assert asker.result(60)["result"] == {"text": "while it was away"}
    assert one.until("result_received")["taken"] is True
