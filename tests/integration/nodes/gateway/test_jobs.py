"""A job's way through one instance: from a session to a node and back."""

from uuid import uuid4

from pipeline.nodes.job import JobState
from tests.integration.nodes.gateway.conftest import ConnectNode, ConnectSession, Start
from tests.support.gateway import GatewayThread
from tests.support.waiting import wait_until


def test_a_job_goes_to_a_node_and_its_result_comes_back(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    request = asker.ask("r1", b"picture", timeout_ms=20_000)
    job = node.job()
    assert (job["capability"], job["model"], job["body"], job["attempt"]) == ("text", "m", {"prompt": "Say so."}, 1)
    assert job.parts == [b"picture"]
    node.say("job_ack", job)
    node.say("job_started", job)
    node.answer(job, "so", b"cut out")
    received = node.until("result_received")
    assert (received["job_id"], received["taken"]) == (job["job_id"], True)
    accepted = asker.receive()
    assert (accepted.type, accepted["request_id"], accepted["job_id"]) == ("job_accepted", request, job["job_id"])
    got = asker.result()
    assert (got["request_id"], got["result"], got["node_id"], got.parts) == (
        request,
        {"text": "so"},
        "n1",
        [b"cut out"],
    )
    stored_job = lambda: gateway.do(gateway.instance.jobs.get(job["job_id"]))  # noqa: E731
    wait_until(lambda: stored_job().state is JobState.RELEASED, 60, "the job is released", last=stored_job)
    assert gateway.do(gateway.instance.slots.held("n1")) == {}


def test_an_old_node_that_acknowledges_nothing_does_its_job(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    node.answer(node.job(), "so")
    assert asker.result()["result"] == {"text": "so"}


def test_partial_results_come_in_their_order_and_count_as_a_start(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask(partials=True)
    job = node.job()
    for piece in "abc":
        node.say("job_partial", job, text=piece)
    pieces = [asker.until("job_partial") for _ in range(3)]
    assert [(piece["attempt"], piece["text"]) for piece in pieces] == [(1, "a"), (1, "b"), (1, "c")]
    assert gateway.do(gateway.instance.jobs.get(job["job_id"])).state is JobState.RUNNING
    node.answer(job)
    assert asker.result()["result"] == {"text": "done"}


def test_partials_go_only_to_sessions_that_want_them(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    job = node.job()
    node.say("job_partial", job, text="a")
    node.answer(job)
    assert [asker.receive().type, asker.receive().type] == ["job_accepted", "job_result"]


def test_half_a_character_on_its_way_there_or_back_holds_up_nothing(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask(body={"prompt": "half \ud83d"})
    job = node.job()
    assert job["body"] == {"prompt": "half \ufffd"}
    node.answer(job, "\ude00 back")
    assert asker.result()["result"] == {"text": "\ufffd back"}


def test_an_error_of_the_node_is_the_answer(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    error = {"code": "refused_to_answer", "message": "no", "kind": "permanent"}
    node.say("job_result", node.job(), error=error)
    assert asker.result()["error"] == error


def test_a_repeated_request_is_the_same_job_with_the_same_result(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker, other = connect_node(gateway), connect_session(gateway), connect_session(gateway)
    request = asker.ask()
    job = node.job()
    other.ask(request)
    assert other.until("job_accepted")["job_id"] == job["job_id"]
    node.answer(job, "once")
    assert [asker.result()["result"], other.result()["result"]] == [{"text": "once"}] * 2
    third = connect_session(gateway)
    third.ask(request)
    assert third.result()["result"] == {"text": "once"}, "the result is kept for a while"
    node.until("result_received")
    assert node.nothing_comes()


def test_a_failed_request_may_be_repeated(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    request = asker.ask()
    first = node.job()
    node.say("job_result", first, error={"code": "failed", "message": "out of memory"})
    assert asker.result()["error"]["code"] == "failed"
    wait_until(lambda: _asked_anew(asker, request), 60, "the failed request is forgotten")
    second = node.job()
    assert second["job_id"] != first["job_id"]
    node.answer(second)
    assert asker.until("job_result")["result"] == {"text": "done"}


def _asked_anew(asker: object, request: str) -> bool:
    asker.ask(request)  # type: ignore[attr-defined]
    return bool(asker.until("job_accepted", "job_result").type == "job_accepted")  # type: ignore[attr-defined]


def test_equal_requests_of_two_tokens_are_two_jobs(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession, other_session_token: str
) -> None:
    node, asker = connect_node(gateway, slots=2), connect_session(gateway)
    stranger = connect_session(gateway, secret=other_session_token)
    request = uuid4().hex
    asker.ask(request)
    stranger.ask(request)
    jobs = {node.job()["job_id"], node.job()["job_id"]}
    assert len(jobs) == 2


def test_a_cancelled_job_ends_at_its_node_and_frees_its_slot(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    request = asker.ask()
    job = node.job()
    asker.until("job_accepted")
    asker.send({"type": "job_cancel", "request_id": request})
    assert node.until("job_cancel")["job_id"] == job["job_id"]
    node.answer(job, "too late")
    assert node.until("result_received")["taken"] is False
    asker.ask()
    assert node.job()["attempt"] == 1


def test_a_job_cancelled_in_line_does_not_block_the_jobs_behind_it(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway), connect_session(gateway)
    asker.ask()
    running = node.job()
    cancelled = asker.ask()
    wait_until(lambda: _waiting(gateway) == 1, 60, "the first job is in line")
    asker.ask("behind")
    wait_until(lambda: _waiting(gateway) == 2, 60, "both jobs are in line")
    asker.send({"type": "job_cancel", "request_id": cancelled})
    wait_until(lambda: len(gateway.instance.dispatch.jobs) == 2, 60, "the first job is cancelled")
    node.answer(running)
    asker.result()
    node.answer_next()
    assert asker.result()["request_id"] == "behind"


def test_a_job_continues_if_one_of_two_sessions_cancels_it(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker, other = connect_node(gateway), connect_session(gateway), connect_session(gateway)
    request = asker.ask()
    job = node.job()
    other.ask(request)
    other.until("job_accepted")
    asker.send({"type": "job_cancel", "request_id": request})
    node.answer(job)
    assert other.result()["result"] == {"text": "done"}


def test_a_request_without_a_node_fails_at_once_if_it_asks_for_that(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    connect_node(gateway)
    asker = connect_session(gateway)
    asker.ask(model="unheard-of", if_no_node="error")
    error = asker.result()["error"]
    assert (error["code"], error["kind"]) == ("no_node", "rate_limited")
    assert "no node offers text with model unheard-of" in error["message"]


def test_a_waiting_request_fails_when_the_last_node_that_offers_it_leaves(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, first, second = connect_node(gateway, slots=1), connect_session(gateway), connect_session(gateway)
    first.ask()
    job = node.job()
    second.ask("behind", if_no_node="error", timeout_ms=60_000)
    second.until("job_accepted")
    node.send({"type": "node_drain"})
    assert second.result()["error"]["code"] == "no_node"
    node.answer(job)
    assert first.result()["result"] == {"text": "done"}


def test_a_job_waits_until_a_node_offers_its_capability(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    asker = connect_session(gateway)
    asker.ask(timeout_ms=20_000)
    asker.until("job_accepted")
    connect_node(gateway).answer_next()
    assert asker.result()["result"] == {"text": "done"}


def test_a_request_without_a_node_times_out(gateway: GatewayThread, connect_session: ConnectSession) -> None:
    asker = connect_session(gateway)
    asker.ask(timeout_ms=300)
    error = asker.result()["error"]
    assert (error["code"], error["message"]) == ("timed_out", "no node offered text m in time")


def test_a_node_gets_no_more_than_its_slots(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway, slots=2), connect_session(gateway)
    for _ in range(5):
        asker.ask()
    first, second = node.job(), node.job()
    assert node.nothing_comes()
    node.answer(first)
    third = node.job()
    node.answer(second)
    node.answer(third)
    for _ in range(2):
        node.answer(node.job())
    assert {asker.result().type for _ in range(5)} == {"job_result"}


def test_requesters_take_turns_at_a_slot(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession, other_session_token: str
) -> None:
    node, many, few = (
        connect_node(gateway),
        connect_session(gateway),
        connect_session(gateway, secret=other_session_token),
    )
    for number in range(6):
        many.ask(f"many-{number}", body={"prompt": "many"})
        many.until("job_accepted")
    running = node.job()
    for number in range(2):
        few.ask(f"few-{number}", body={"prompt": "few"})
        few.until("job_accepted")
    wait_until(lambda: _waiting(gateway) == 7, 60, "all other jobs wait", last=lambda: _waiting(gateway))
    order = []
    for _ in range(4):
        node.answer(running)
        running = node.job()
        order.append(running["body"]["prompt"])
    assert order.count("few") == 2, "few requests do not wait behind many of another requester"


def _waiting(gateway: GatewayThread) -> int:
    return sum(gateway.do(gateway.instance.waiting.pools()).values())


def test_a_drained_node_finishes_its_jobs_and_gets_no_more(
    gateway: GatewayThread, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    node, asker = connect_node(gateway, slots=2), connect_session(gateway)
    asker.ask()
    job = node.job()
    node.send({"type": "node_drain"})
    wait_until(lambda: gateway.instance.nodes["n1"].state.draining, 60, "the node is draining")
    asker.ask("later", timeout_ms=20_000)
    assert node.nothing_comes()
    node.answer(job)
    assert asker.result()["result"] == {"text": "done"}
    connect_node(gateway, "n2").answer_next()
    assert asker.result()["node_id"] == "n2"


def test_requests_of_closed_sessions_count_against_their_token(
    start: Start, connect_session: ConnectSession, other_session_token: str
) -> None:
    gateway = start(max_token_jobs=4)
    for _ in range(2):
        leaving = connect_session(gateway)
        for _ in range(2):
            leaving.ask(timeout_ms=60_000)
            assert leaving.until("job_accepted")
        leaving.drop()
    wait_until(lambda: not gateway.instance.sessions, 60, "both sessions have closed")
    wait_until(lambda: len(gateway.instance.dispatch.jobs) == 4, 60, "their jobs stay")
    asker = connect_session(gateway)
    asker.ask()
    error = asker.result()["error"]
    assert (error["code"], error["kind"]) == ("too_many_jobs", "rate_limited")
    other = connect_session(gateway, secret=other_session_token)
    other.ask()
    assert other.until("job_accepted"), "another token has its own limit"


def test_too_many_jobs_of_one_session_are_refused(
    start: Start, connect_node: ConnectNode, connect_session: ConnectSession
) -> None:
    gateway = start(max_session_jobs=2)
    asker = connect_session(gateway)
    for _ in range(3):
        asker.ask()
    error = asker.result()["error"]
    assert (error["code"], error["kind"]) == ("too_many_jobs", "rate_limited")
