"""Instances and nodes that are killed, or stall and continue, under load."""

import asyncio
import sys
import time
from itertools import cycle

import pytest

from pipeline.nodes.client import Session, SessionReply
from tests.faults.nodes.fleet import RUN_S, Fleet
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
KILLS = 3
NOTICED_S = 30


def test_every_request_is_answered_once_while_instances_are_killed_in_turn(fleet: Fleet) -> None:
    fleet.start("a", "b", "c")
    fleet.node("n1")
    fleet.node("n2")
    until, kills = time.monotonic() + RUN_S, 0
    with fleet.load() as load:
        load.go_on(20)
        for victim in cycle("abc"):
            fleet.stack[victim].kill()
            kills += 1
            load.go_on(30)
            fleet.start(victim)
            load.go_on(30)
            if kills >= KILLS and time.monotonic() > until:
                break
    fleet.assert_exactly_once(load)
    sys.stdout.write(f"{kills} instances killed, {len(load.asked)} requests\n")  # visible in long runs with pytest -rP


@pytest.mark.rotating
def test_an_instance_that_resumes_after_its_lease_expired_does_no_harm(fleet: Fleet) -> None:
    fleet.start("a", "b")
    fleet.node("n1")
    fleet.node("n2")
    with fleet.load() as load:
        for name in "ab":
            load.go_on(20)
            fleet.stack[name].pause()
            wait_until(lambda name=name: name not in fleet.living(), NOTICED_S, f"{name} counts as dead")
            load.go_on(20)
            fleet.stack[name].resume()
            wait_until(lambda name=name: name in fleet.living(), NOTICED_S, f"{name} serves again")
        load.go_on(20)
    fleet.assert_exactly_once(load)


@pytest.mark.rotating
def test_a_node_that_stalls_past_its_time_loses_its_jobs_and_reconnects(fleet: Fleet) -> None:
    fleet.start("a", "b")
    fleet.node("n1", fleet.urls[0])
    fleet.node("n2", fleet.urls[1])
    # More requests than one node has slots, so that both nodes always have jobs.
    with fleet.load(askers=8, work_s=0.2) as load:
        load.go_on(20)
        fleet.stack["n1"].pause()
        wait_until(lambda: "n1" not in fleet.nodes(), NOTICED_S, "the node counts as disconnected")
        load.go_on(20)
        fleet.stack["n1"].resume()
        wait_until(lambda: "n1" in fleet.nodes(), NOTICED_S, "the node is connected")
        load.go_on(20)
    fleet.assert_exactly_once(load)
    assert max(job.attempt for job in fleet.jobs().values()) > 1, "the other node did its jobs"


@pytest.mark.rotating
def test_fifty_copies_of_a_request_to_three_instances_are_one_job(fleet: Fleet) -> None:
    fleet.start("a", "b", "c")
    fleet.node("n1")

    async def ask(url: str) -> SessionReply:
        async with Session(url, fleet.session_token) as session:
            body = {"prompt": "once", "work_s": 0.3}
            return await session.request("text", "m", body, request_id="the-same")

    async def ask_all() -> list[SessionReply]:
        return await asyncio.gather(*(ask(fleet.urls[number % 3]) for number in range(50)))

    replies = asyncio.run(ask_all())
    assert {(reply.result["text"], reply.attempt) for reply in replies} == {("once", 1)}
    assert fleet.journal("began") == ["once"]
    assert list(fleet.jobs()) == ["the-same"]
    fleet.wait_until_quiet()
