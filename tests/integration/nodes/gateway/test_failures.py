"""Nodes that fail, lie, fall silent or come back; sessions that come back; a Redis that forgets."""

from contextlib import ExitStack

from pipeline.nodes.job import JobState
from pipeline.storage.context import Context
from tests.integration.nodes.gateway.conftest import ConnectNode, ConnectSession, Start
from tests.support.gateway import GatewayThread, Got
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until


def test_a_node_that_takes_too_long_is_left_for_another_and_its_late_result_is_dropped(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    slow, asker = connect_node(gateway, "slow"), connect_session(gateway)
    asker.ask(attempt_timeout_ms=400, timeout_ms=20_000)
    first = slow.job()
    quick = connect_node(gateway, "quick")
    second = quick.job()
    assert (second["job_id"], second["attempt"]) == (first["job_id"], 2)
    assert slow.until("job_cancel")["attempt"] == 1
    slow.answer(first, "late")
    assert slow.until("result_received")["taken"] is False
    quick.answer(second, "in time")
    got = asker.result()
    assert (got["result"], got["attempt"], got["node_id"]) == ({"text": "in time"}, 2, "quick")


def test_after_the_last_attempt_the_job_fails_and_says_why(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    gateway = start(max_attempts=2, cool_down_ms=10)
    asker = connect_session(gateway)
    node = connect_node(gateway)
    asker.ask(attempt_timeout_ms=200, timeout_ms=20_000)
    assert [node.job()["attempt"], node.job()["attempt"]] == [1, 2]
    error = asker.result()["error"]
    assert (error["code"], error["message"]) == ("timed_out", "node n1 did not answer in 0.2 s")


def test_a_lost_node_s_job_goes_to_another_node(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    first = node.job()
    node.drop()
    other = connect_node(gateway, "n2")
    assert other.answer_next()["attempt"] == first["attempt"] + 1
    assert asker.result()["node_id"] == "n2"


def test_a_silent_node_is_disconnected(start: Start, connect_node: ConnectNode) -> None:
    gateway = start(heartbeat_ms=100)
    node = connect_node(gateway, heartbeat_s=0)
    end = node.until("never")
    assert (end.code, end.reason) == (4408, "the client was silent for too long")


def test_heartbeats_keep_a_node(start: Start, connect_node: ConnectNode, connect_session: ConnectSession) -> None:
    gateway = start(heartbeat_ms=700)
    node, asker = connect_node(gateway, heartbeat_s=0), connect_session(gateway)
    for _ in range(5):  # longer than the silence after which it would be sent away
        node.send({"type": "node_heartbeat"})
        assert node.nothing_comes(0.5)
    asker.ask()
    assert node.job()


def test_a_node_that_comes_back_goes_on_with_its_jobs(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    job = node.job()
    node.drop()
    back = connect_node(gateway, held=[{"job_id": job["job_id"], "attempt": 1}])
    back.answer(job, "kept")
    got = asker.result()
    assert (got["result"], got["attempt"]) == ({"text": "kept"}, 1)


def test_a_node_that_returns_without_its_job_gets_it_a_second_time(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    job = node.job()
    node.drop()
    back = connect_node(gateway)
    repeated = back.job()
    assert (repeated["job_id"], repeated["attempt"]) == (job["job_id"], 2)
    back.answer(repeated)
    assert asker.result()["attempt"] == 2


def test_a_reconnecting_node_gets_cancellations_of_obsolete_jobs(
    gateway: GatewayThread, connect_node: ConnectNode
) -> None:
    node = connect_node(gateway, held=[{"job_id": "unheard-of", "attempt": 3}])
    cancelled = node.until("job_cancel")
    assert (cancelled["job_id"], cancelled["attempt"]) == ("unheard-of", 3)


def test_a_job_for_a_missing_model_goes_to_another_node(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    liar, asker = connect_node(gateway, "liar"), connect_session(gateway)
    asker.ask(timeout_ms=20_000)
    _say_missing(liar, liar.job())
    assert liar.until("result_received")["taken"] is True
    honest = connect_node(gateway, "honest")
    assert honest.answer_next()["attempt"] == 2
    assert asker.result()["node_id"] == "honest"
    asker.ask()
    assert honest.answer_next(), "the other node is in its cool-down, though it has a free slot"
    assert liar.nothing_comes()


def _say_missing(node: object, job: Got) -> None:
    error = {"code": "MODEL_NOT_AVAILABLE", "message": "it was removed"}
    node.say("job_result", job, error=error)  # type: ignore[attr-defined]


def test_refusals_of_a_busy_node_do_not_use_attempts(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    gateway = start(max_attempts=1)
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask(timeout_ms=20_000)
    for attempt in (1, 2):
        job = node.job()
        assert job["attempt"] == attempt
        node.say("job_result", job, error={"code": "NODE_BUSY", "message": "all slots are taken"})
    node.answer_next()
    assert asker.result()["result"] == {"text": "done"}


def test_a_node_cannot_answer_the_job_of_another_node(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, liar, asker = (
        connect_node(gateway),
        connect_node(gateway, "liar", offers=[{"capability": "vision"}]),
        connect_session(gateway),
    )
    asker.ask()
    job = node.job()
    liar.answer(job, "forged")
    assert liar.until("result_received")["taken"] is False
    liar.say("job_started", job)
    liar.say("job_partial", job, text="forged")
    node.answer(job, "true")
    assert asker.result()["result"] == {"text": "true"}


def test_a_result_sent_twice_counts_once(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    job = node.job()
    node.answer(job, "first")
    node.answer(job, "second")
    assert asker.result()["result"] == {"text": "first"}
    assert asker.nothing_comes()


def test_a_returning_session_gets_the_answer_that_it_missed(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession, closing: ExitStack
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    request = asker.ask()
    job = node.job()
    asker.drop()
    node.answer(job)
    node.until("result_received")
    back = connect_session(gateway, asker.id)
    back.ask(request)
    assert back.result()["result"] == {"text": "done"}


def test_a_redis_that_was_emptied_ends_jobs_with_an_error_and_serves_new_ones(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession, state_server: RedisServer
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask(timeout_ms=20_000)
    job = node.job()
    state_server.flush()
    error = asker.result()["error"]
    assert (error["code"], error["kind"]) == ("state_lost", "transient")
    assert node.until("job_cancel")["job_id"] == job["job_id"]
    node.answer(job)
    assert node.until("result_received")["taken"] is False
    asker.ask(timeout_ms=20_000)
    node.answer_next()
    assert asker.result()["result"] == {"text": "done"}


def test_a_redis_that_restarts_loses_nothing(
    gateway: GatewayThread,
    connect_node: ConnectNode,
    connect_session: ConnectSession,
    state_server: RedisServer,
    context: Context,
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask(timeout_ms=60_000)
    job = node.job()
    wait_until(
        lambda: gateway.do(gateway.instance.jobs.get(job["job_id"])).state is JobState.DISPATCHED,
        60,
        "the result is stored",
    )
    state_server.kill()
    node.answer(job, "while it was away")
    state_server.start()
    assert asker.result(60)["result"] == {"text": "while it was away"}
    assert node.until("result_received")["taken"] is True
