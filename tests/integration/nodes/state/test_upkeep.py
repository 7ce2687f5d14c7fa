import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.nodes.job import Job, NewJob
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.state.dlq import dlq
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.requests import Requests
from pipeline.nodes.state.slots import Slots
from pipeline.nodes.state.snapshots import NodeState, Snapshots
from pipeline.nodes.state.store import Store
from pipeline.nodes.state.upkeep import GRACE_MS, LATE_MS, UpkeepCounts, tend
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
NEW = NewJob(
    job_id="j",
    request_key="t:r",
    capability="text",
    model="m",
    requester="t",
    home="a/1",
    timeout_ms=60_000,
    attempt_timeout_ms=60_000,
    max_attempts=3,
)


@pytest.fixture
async def jobs(store: Store) -> Jobs:
    return Jobs(store)


async def dispatched(jobs: Jobs, job_id: str = "j", node_id: str = "n", waiter: str = "") -> None:
    await jobs.create(replace(NEW, job_id=job_id), waiter)
    assert await jobs.dispatch(job_id, 1, node_id)


async def set_back(store: Store, job_id: str, field: str, by_ms: int) -> None:
    """Move a job's time back by this many milliseconds."""
    await store.do("HSET", store.keys.job(job_id), field, await store.now_ms() - by_ms)


async def got(jobs: Jobs, job_id: str = "j") -> Job:
    job = await jobs.get(job_id)
    assert job is not None
    return job


async def session_at(store: Store, session_id: str) -> Inbox:
    """Create the instance that owns a session, and return its inbox."""
    instances, inbox = Instances(store), Inbox(store, "s-instance")
    await instances.present("s-instance", "1", {})
    await instances.sessions.take(session_id, "s-instance")
    await inbox.open()
    return inbox


async def test_upkeep_changes_nothing_on_an_empty_or_healthy_redis(store: Store, jobs: Jobs) -> None:
    assert await tend(store) == UpkeepCounts()
    await dispatched(jobs)
    await Slots(store).reserve("n", "j", slots=1, model="", ttl_ms=60_000)
    await Instances(store).present("a", "1", {})
    await Inbox(store, "a").open()
    assert await tend(store) == UpkeepCounts()
    assert (await got(jobs)).state == "DISPATCHED"
    assert not await store.do("EXISTS", store.keys.upkeep)


async def test_jobs_past_their_deadline_end_and_notify_their_waiters(store: Store, jobs: Jobs) -> None:
    inbox = await session_at(store, "s")
    await Requests(store).bind("t:r", "j", "a/1")
    await dispatched(jobs, waiter="s")
    await Slots(store).reserve("n", "j", slots=1, model="", ttl_ms=60_000)
    await dispatched(jobs, "just-late", "n2")
    await set_back(store, "j", "deadline_ms", LATE_MS + 1000)
    await set_back(store, "just-late", "deadline_ms", LATE_MS - 3000)
    assert await tend(store) == UpkeepCounts(overdue=1)
    job = await got(jobs)
    assert (job.state, job.outcome, job.error_code) == ("RELEASED", "error", "timed_out")
    result = await jobs.result("j")
    assert result is not None
    assert Parcel.unpack(result).head["error"]["code"] == "timed_out"
    (message,) = await inbox.read()
    assert (message.kind, message.body) == ("result", {"session_id": "s", "request_key": "t:r", "job_id": "j"})
    assert await Slots(store).held("n") == {}
    assert (await Requests(store).bind("t:r", "k", "a/1")).bound_here
    assert (await got(jobs, "just-late")).state == "DISPATCHED"
    assert await tend(store) == UpkeepCounts()


async def test_a_job_that_waits_for_a_node_ends_at_its_deadline_too(store: Store, jobs: Jobs) -> None:
    await jobs.create(NEW)
    await set_back(store, "j", "deadline_ms", LATE_MS + 1000)
    assert await tend(store) == UpkeepCounts(overdue=1)
    assert (await got(jobs)).state == "RELEASED"


async def test_upkeep_sends_results_that_their_homes_did_not_send(store: Store, jobs: Jobs) -> None:
    inbox = await session_at(store, "s")
    for job_id in ("old", "new"):
        await dispatched(jobs, job_id, waiter="s")
        await jobs.finish(job_id, 1, "n", b"result", "ok")
    await set_back(store, "old", "finished_ms", GRACE_MS + 1000)
    assert await tend(store) == UpkeepCounts(handed_out=1)
    assert [message.body["job_id"] for message in await inbox.read()] == ["old"]
    assert ((await got(jobs, "old")).state, (await got(jobs, "new")).state) == ("RELEASED", "FINISHED")
    assert await jobs.result("old") == b"result"


async def test_reservations_of_jobs_that_do_not_need_them_are_released(store: Store, jobs: Jobs) -> None:
    slots = Slots(store)
    node = NodeState("n", "n", "t", "a", slots=9, used=0, offers=(), last_seen_ms=await store.now_ms())
    await Snapshots(store).put([node])
    for job_id in ("needed", "young"):
        await dispatched(jobs, job_id)
    await dispatched(jobs, "elsewhere", "n2")
    await dispatched(jobs, "done")
    await jobs.finish("done", 1, "n", b"x", "ok")
    await jobs.create(replace(NEW, job_id="waits"))
    names = ("needed", "elsewhere", "done", "waits", "unknown", "young-unknown")
    for job_id in names:
        await slots.reserve("n", job_id, slots=9, model="", ttl_ms=60_000)
    long_ago = await store.now_ms() - GRACE_MS - 1000
    for job_id in names[:-1]:
        await store.do("HSET", store.keys.reserved_since("n"), job_id, long_ago)
    assert await tend(store) == UpkeepCounts(orphans=4)
    assert set(await slots.held("n")) == {"needed", "young-unknown"}
    assert await tend(store) == UpkeepCounts()


async def test_upkeep_moves_dead_letters_and_closes_empty_inboxes(open_store: Callable[..., Store]) -> None:
    store = open_store(dlq_max_deliveries=1)
    instances = Instances(store)
    for instance_id in ("a", "empty"):
        await instances.present(instance_id, "1", {})
        await Inbox(store, instance_id).open()
    inbox = Inbox(store, "a")
    await inbox.send("a", "assign", {})
    await inbox.read()
    await inbox.reclaim(0)
    await instances.leave("empty", "1")
    done: list[UpkeepCounts] = []

    async def is_moved() -> bool:
        done.append(await tend(store))
        return done[-1].dlq_moved == 1

    await until(is_moved, 60, "the dead letter is moved")
    assert sum(counts.closed for counts in done) == 1
    assert [instance.instance_id for instance in await instances.all()] == ["a"]
    assert [entry.kind for entry in await dlq(store)] == ["assign"]


async def test_upkeep_keeps_a_dead_inbox_with_messages(store: Store) -> None:
    await Instances(store).present("a", "1", {})
    await Inbox(store, "a").open()
    await Inbox(store, "b").send("a", "result", {})
    await Instances(store).leave("a", "1")
    assert await tend(store) == UpkeepCounts()
    assert [message.kind for message in await Inbox(store, "b").take_dead("a") or []] == ["result"]


async def test_nodes_that_are_long_gone_are_forgotten(store: Store) -> None:
    snapshots = Snapshots(store)
    await snapshots.put([NodeState("n", "n", "t", "a", slots=1, used=0, offers=(), last_seen_ms=1)])
    assert await tend(store) == UpkeepCounts()
    await snapshots.remove("n")
    assert await tend(store) == UpkeepCounts(stale_nodes=1)


async def test_two_simultaneous_beats_tend_once(open_store: Callable[..., Store]) -> None:
    stores = [open_store() for _ in range(2)]
    jobs = Jobs(stores[0])
    for job_id in "xyz":
        await dispatched(jobs, job_id)
        await set_back(stores[0], job_id, "deadline_ms", LATE_MS + 1000)
    tended = await asyncio.gather(*map(tend, stores))
    assert sum(counts.overdue for counts in tended) == 3


async def test_while_one_beat_tends_another_does_nothing(store: Store, jobs: Jobs) -> None:
    await dispatched(jobs)
    await set_back(store, "j", "deadline_ms", LATE_MS + 1000)
    await store.do("SET", store.keys.upkeep, "another", "PX", 60_000)
    assert await tend(store) == UpkeepCounts()
    assert await store.do("GET", store.keys.upkeep) == b"another"
