"""A node handles the jobs that a scripted gateway assigns."""

import threading
from typing import Any

import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.nodes.client.bench import Results
from pipeline.nodes.protocol import (
    NODE_BUSY,
    HeldJob,
    JobStarted,
    NodePartial,
    NodeRegister,
    NodeResult,
)
from tests.support.scripted_gateway import (
    DEADLINE_S,
    NodeLink,
    RunningAgent,
    ScriptedExecutor,
    ScriptedGateway,
    running_agent,
)
from tests.support.waiting import wait_until

PNG = "image/png"


def test_a_job_is_acknowledged_started_and_answered(link: NodeLink) -> None:
    link.assign("a", prompt="hello")
    link.expect_start("a")
    assert link.result("a").result == {"text": "hello", "model": ""}


def test_attachments_of_any_size_come_and_go_in_their_order(link: NodeLink) -> None:
    big = bytes(range(256)) * 4096 * 8
    link.assign("a", (PNG, big), ("image/webp", b""), (PNG, b"x"))
    link.expect_start("a")
    result = link.result("a")
    assert [about.media_type for about in result.attachments] == [PNG, "image/webp", PNG]
    assert link.parts == [big, b"", b"x"]


def test_pieces_of_a_text_come_in_order_and_none_is_too_long(link: NodeLink, executor: ScriptedExecutor) -> None:
    def stream(body: dict[str, Any], partial: Any) -> dict[str, Any]:
        for piece in ("one ", "x" * 70_000, " two"):
            partial(piece)
        return {"text": "whole"}

    executor.deeds["stream"] = stream
    link.assign("a", deed="stream")
    link.expect_start("a")
    pieces = [link.expect(NodePartial, "a").text for _ in range(4)]
    assert (pieces[0], [len(piece) for piece in pieces[1:3]], pieces[3]) == ("one ", [65_536, 4464], " two")
    link.result("a")


def test_a_job_beyond_the_slots_is_refused_and_a_slot_is_free_once_its_result_is_sent(
    link: NodeLink, executor: ScriptedExecutor
) -> None:
    for job_id in ("a", "b"):
        link.assign(job_id, wait=True)
        link.expect_start(job_id)
    link.assign("c")
    error = link.result("c").error
    assert error is not None
    assert (error.code, error.kind) == (NODE_BUSY, "transient")
    executor.go()
    done = link.expect(NodeResult)
    link.assign("d", prompt="now")
    messages = [link.next() for _ in range(4)]  # the other result may come at any time
    assert ("JobStarted", "d") in [(type(message).__name__, getattr(message, "job_id", "")) for message in messages]
    assert done.job_id in {"a", "b"}
    assert len(executor.runs) == 3


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (
            UnitError("busy", kind=ErrorKind.RATE_LIMITED, code="rate_limited", retry_after_s=7),
            ("rate_limited", "busy", "rate_limited", 7),
        ),
        (UnitError("x" * 3000, kind=ErrorKind.PERMANENT), ("failed", "x" * 1999 + "…", "permanent", None)),
        (
            UnitError("later", kind=ErrorKind.QUOTA, code="quota_day", retry_after_s=1e9),
            ("quota_day", "later", "quota", 86_400),
        ),
        (RuntimeError("/secret/path"), ("failed", "the node failed at this job", "transient", None)),
    ],
)
def test_an_error_says_its_kind_without_internal_details(
    link: NodeLink, executor: ScriptedExecutor, raised: Exception, expected: tuple[Any, ...]
) -> None:
    def fail(body: dict[str, Any], partial: Any) -> dict[str, Any]:
        raise raised

    executor.deeds["fail"] = fail
    link.assign("a", deed="fail")
    link.expect_start("a")
    error = link.result("a").error
    assert error is not None
    assert (error.code, error.message, error.kind, error.retry_after_s) == expected


def test_a_result_that_cannot_be_sent_fails_its_job(link: NodeLink, executor: ScriptedExecutor) -> None:
    executor.deeds["odd"] = lambda body, partial: {"text": object()}
    link.assign("a", deed="odd")
    link.expect_start("a")
    error = link.result("a").error
    assert error is not None
    assert error.code == "failed"
    link.assign("b", prompt="the next")
    link.expect_start("b")
    link.result("b")


def test_a_repeated_assignment_runs_once(link: NodeLink, executor: ScriptedExecutor) -> None:
    link.assign("a", wait=True, attempt=2)
    link.expect_start("a", 2)
    link.assign("a", wait=True, attempt=2)
    link.expect_start("a", 2)
    link.assign("a", prompt="an old attempt", attempt=1)
    executor.go()
    first = link.result("a", 2, received=False)
    link.assign("a", attempt=2)
    assert link.result("a", 2) == first
    link.assign("a", attempt=2)
    link.assign("b", prompt="the next")
    link.expect_start("b")
    assert len(executor.runs) == 2


def test_a_cancelled_job_sends_no_result_and_keeps_its_slot_until_its_thread_ends(
    link: NodeLink, node: RunningAgent, executor: ScriptedExecutor
) -> None:
    for job_id in ("a", "b"):
        link.assign(job_id, wait=True)
        link.expect_start(job_id)
    link.cancel("a", 2)
    link.cancel("a")
    link.assign("c")
    error = link.result("c").error
    assert error is not None
    assert error.code == NODE_BUSY
    executor.go()
    link.result("b")
    wait_until(lambda: not node.agent.bench.threads, DEADLINE_S, "both threads have ended")
    link.assign("d")
    link.expect_start("d")


def test_a_higher_attempt_takes_the_place_of_the_lower(link: NodeLink, executor: ScriptedExecutor) -> None:
    link.assign("a", wait=True)
    link.expect_start("a")
    link.assign("a", attempt=2, prompt="anew")
    link.expect_start("a", 2)
    assert link.result("a", 2).result == {"text": "anew", "model": ""}
    executor.go()
    link.assign("b")
    link.expect_start("b")


def test_jobs_go_on_without_a_connection_and_results_are_sent_until_they_are_received(
    gateway: ScriptedGateway, link: NodeLink, executor: ScriptedExecutor
) -> None:
    link.assign("kept", (PNG, b"abc"), prompt="k")
    link.expect_start("kept")
    first = link.result("kept", received=False)
    link.assign("at-work", wait=True)
    link.expect_start("at-work")
    link.cut()
    link = gateway.connection()
    executor.go()
    link.welcome()
    assert link.registered is not None
    assert set(link.registered.held) == {HeldJob(job_id="kept", attempt=1), HeldJob(job_id="at-work", attempt=1)}
    results: dict[str, NodeResult] = {}
    while len(results) < 2:
        message = link.next()
        if isinstance(message, NodeResult):
            results[message.job_id] = message
            link.received(message.job_id)
    assert results["kept"] == first
    link.close(1012)
    assert gateway.connection().expect(NodeRegister).held == ()


def test_pieces_that_would_come_after_a_gap_are_left_out(
    gateway: ScriptedGateway, link: NodeLink, executor: ScriptedExecutor
) -> None:
    go_on = threading.Event()

    def stream(body: dict[str, Any], partial: Any) -> dict[str, Any]:
        partial("one")
        assert go_on.wait(DEADLINE_S)
        partial("two")
        return {"text": "whole"}

    executor.deeds["stream"] = stream
    link.assign("a", deed="stream")
    link.expect_start("a")
    link.expect(NodePartial, "a")
    link.cut()
    link = gateway.welcome()
    link.expect_start("a")
    go_on.set()
    assert link.result("a").result == {"text": "whole"}


def test_results_beyond_the_limit_give_way_the_oldest_first(
    gateway: ScriptedGateway, executor: ScriptedExecutor
) -> None:
    with running_agent(gateway, executor=executor, results=Results(max_bytes=50_000)):
        link = gateway.welcome()
        for job_id in ("a", "b", "c"):
            link.assign(job_id, (PNG, b"x" * 20_000))
            link.expect_start(job_id)
            link.result(job_id, received=False)
        link.cut()
        held = gateway.connection().expect(NodeRegister).held
        assert [job.job_id for job in held] == ["b", "c"]


def test_a_result_over_the_gateway_s_limit_is_an_error(gateway: ScriptedGateway, node: RunningAgent) -> None:
    link = gateway.welcome(max_attachment_bytes=1000, max_message_bytes=70_000)
    link.assign("bytes", (PNG, b"x" * 1001))
    link.expect_start("bytes")
    errors = [link.result("bytes").error]
    link.assign("text", prompt="é" * 35_000)
    link.expect_start("text")
    errors.append(link.result("text").error)
    assert [(error.code, error.kind) for error in errors if error] == [("too_large", "permanent")] * 2


def test_a_result_that_gateways_reject_is_dropped_after_three_tries(gateway: ScriptedGateway, link: NodeLink) -> None:
    link.assign("a")
    link.expect_start("a")
    for _ in range(3):
        assert link.result("a", received=False)
        link.close(4400, "junk")
        link = gateway.welcome()
    assert link.registered is not None
    assert link.registered.held == ()


def test_a_node_refuses_a_flood_of_jobs_and_keeps_no_results_of_it(
    link: NodeLink, node: RunningAgent, executor: ScriptedExecutor
) -> None:
    for job_id in ("a", "b"):
        link.assign(job_id, wait=True)
        link.expect_start(job_id)
    for number in range(5000):
        link.assign(f"x{number}")
    refused = [link.expect(NodeResult) for _ in range(5000)]
    assert {result.error.code for result in refused if result.error} == {NODE_BUSY}
    assert len(node.agent.bench.results) == 0
    assert len(executor.runs) == 2


def test_job_started_is_not_repeated_for_cancelled_jobs(
    gateway: ScriptedGateway, link: NodeLink, executor: ScriptedExecutor
) -> None:
    for job_id in ("a", "b"):
        link.assign(job_id, wait=True)
        link.expect_start(job_id)
    link.cancel("a")
    link.assign("c")
    link.result("c")  # the node has read the cancellation
    link.cut()
    link = gateway.welcome()
    assert link.registered is not None
    assert link.registered.held == (HeldJob(job_id="b", attempt=1),)
    link.expect_start("b")
    executor.go()
    assert not isinstance(link.next(), JobStarted)
