import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from pipeline.nodes.job import JOB, LEGAL, WITH_NODE, Finished, Job, JobEvent, JobState, NewJob
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.sender import Part
from pipeline.nodes.state.store import Store
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
    attempt_timeout_ms=20_000,
    max_attempts=3,
)
WAYS = {
    JobState.CREATED: (),
    JobState.DISPATCHED: (JobEvent.DISPATCH,),
    JobState.ACCEPTED: (JobEvent.DISPATCH, JobEvent.ACK),
    JobState.RUNNING: (JobEvent.DISPATCH, JobEvent.START),
    JobState.FINISHED: (JobEvent.DISPATCH, JobEvent.FINISH),
    JobState.RELEASED: (JobEvent.DISPATCH, JobEvent.FINISH, JobEvent.RELEASE),
}
REPEATED = {
    JobEvent.DISPATCH: WITH_NODE,
    JobEvent.ACK: (JobState.ACCEPTED, JobState.RUNNING),
    JobEvent.START: (JobState.RUNNING,),
    JobEvent.PARTIAL: (JobState.RUNNING,),
    JobEvent.FINISH: (JobState.FINISHED, JobState.RELEASED),
    JobEvent.RELEASE: (JobState.RELEASED,),
    JobEvent.RETRY: (),
}
"""States in which an event is a repeated call after a lost answer: it succeeds, and changes nothing."""


@pytest.fixture
async def jobs(store: Store) -> Jobs:
    return Jobs(store)


async def happen(jobs: Jobs, event: JobEvent, job_id: str = "j", attempt: int = 1, node_id: str = "n") -> bool:
    act: dict[JobEvent, Callable[[], Awaitable[object]]] = {
        JobEvent.DISPATCH: lambda: jobs.dispatch(job_id, attempt, node_id),
        JobEvent.ACK: lambda: jobs.acknowledge(job_id, attempt, node_id),
        JobEvent.START: lambda: jobs.start(job_id, attempt, node_id),
        JobEvent.PARTIAL: lambda: jobs.record_partial(job_id, attempt, node_id),
        JobEvent.FINISH: lambda: jobs.finish(job_id, attempt, node_id, b"result", "ok"),
        JobEvent.RETRY: lambda: jobs.retry(job_id, attempt),
        JobEvent.RELEASE: lambda: jobs.release(job_id),
    }
    return bool(await act[event]())


async def job_in(jobs: Jobs, state: JobState, job_id: str = "j") -> None:
    await jobs.create(replace(NEW, job_id=job_id))
    for event in WAYS[state]:
        assert await happen(jobs, event, job_id)


async def got(jobs: Jobs, job_id: str = "j") -> Job:
    job = await jobs.get(job_id)
    assert job is not None
    return job


async def test_job_fsm_smoke(jobs: Jobs) -> None:
    job = await jobs.create(NEW, "s")
    assert (job.state, job.attempt, job.home, job.deadline_ms - job.created_ms) == ("CREATED", 1, "a/1", 60_000)
    assert await jobs.dispatch("j", 1, "n")
    job = await got(jobs)
    assert (job.state, job.node_id) == ("DISPATCHED", "n")
    assert job.created_ms + 20_000 <= job.attempt_until_ms <= job.deadline_ms
    assert await jobs.acknowledge("j", 1, "n")
    assert (await got(jobs)).state == "ACCEPTED"
    assert await jobs.start("j", 1, "n")
    assert (await got(jobs)).state == "RUNNING"
    finished = await jobs.finish("j", 1, "n", b"result", "ok")
    assert finished == Finished(await got(jobs), frozenset({"s"}))
    assert (finished.job.state, finished.job.outcome) == ("FINISHED", "ok")
    assert finished.job.finished_ms >= finished.job.created_ms
    assert await jobs.release("j")
    assert (await got(jobs)).state == "RELEASED"
    assert await jobs.result("j") == b"result"


async def test_every_transition_of_the_table_happens_and_no_other(jobs: Jobs) -> None:
    for state in JobState:
        for event in JobEvent:
            job_id = f"{state}-{event}"
            await job_in(jobs, state, job_id)
            answer = await happen(jobs, event, job_id)
            job = await got(jobs, job_id)
            # A node can finish only a job that it has; the gateway can finish any job.
            by_nobody = (state, event) == (JobState.CREATED, JobEvent.FINISH)
            legal = (state, event) in LEGAL and not by_nobody
            assert job.state == (JOB.target(state, event) if legal else state), job_id
            assert answer == (legal or state in REPEATED[event]), job_id
            assert job.attempt == (2 if event is JobEvent.RETRY and legal else 1), job_id


async def test_the_gateway_may_finish_a_job_in_any_state_that_is_not_done(jobs: Jobs) -> None:
    for state in JobState:
        await job_in(jobs, state, state)
        finished = await jobs.finish(state, None, "", b"error", "error", "timed_out", "too late")
        is_done = state in {JobState.FINISHED, JobState.RELEASED}
        assert (finished is None) == is_done
        assert await jobs.result(state) == (b"result" if is_done else b"error")
    job = await got(jobs, "RUNNING")
    assert (job.outcome, job.error_code, job.error) == ("error", "timed_out", "too late")


async def test_messages_of_another_node_or_attempt_change_nothing(jobs: Jobs) -> None:
    await job_in(jobs, JobState.RUNNING)
    assert await jobs.retry("j", 1)
    assert await jobs.dispatch("j", 2, "m")
    before = await got(jobs)
    for event in (JobEvent.DISPATCH, JobEvent.ACK, JobEvent.START, JobEvent.PARTIAL, JobEvent.FINISH):
        for attempt, node_id in ((1, "n"), (1, "m"), (2, "n"), (3, "m")):
            assert not await happen(jobs, event, attempt=attempt, node_id=node_id)
    assert await got(jobs) == before
    assert await jobs.result("j") is None


async def test_the_previous_attempt_s_node_cannot_finish_a_requeued_job(jobs: Jobs) -> None:
    await job_in(jobs, JobState.RUNNING)
    await jobs.retry("j", 1)
    for attempt in (1, 2):
        assert await jobs.finish("j", attempt, "n", b"late", "ok") is None
    assert (await got(jobs)).state == "CREATED"


async def test_a_job_is_dispatched_to_one_node(jobs: Jobs) -> None:
    await jobs.create(NEW)
    dispatched = await asyncio.gather(*(jobs.dispatch("j", 1, f"n{number}") for number in range(8)))
    assert sum(dispatched) == 1
    assert (await got(jobs)).node_id == f"n{dispatched.index(True)}"


async def test_one_of_several_simultaneous_ends_finishes_a_job(jobs: Jobs) -> None:
    await job_in(jobs, JobState.RUNNING)
    ends = await asyncio.gather(
        jobs.finish("j", 1, "n", b"0", "ok"),
        jobs.finish("j", None, "", b"1", "cancelled", "cancelled"),
        jobs.finish("j", None, "", b"2", "error", "timed_out"),
    )
    (winner,) = [number for number, end in enumerate(ends) if end]
    assert await jobs.result("j") == str(winner).encode()


async def test_a_repeated_end_is_the_first_end(jobs: Jobs) -> None:
    await jobs.create(NEW, "s")
    await jobs.dispatch("j", 1, "n")
    first = await jobs.finish("j", 1, "n", b"result", "ok")
    assert first is not None
    repeated = await jobs.finish("j", 1, "n", b"other", "ok")
    assert repeated == replace(first, repeated=True)
    assert await jobs.result("j") == b"result"
    await jobs.release("j")
    last = await jobs.finish("j", 1, "n", b"other", "ok")
    assert last is not None
    assert (last.repeated, last.waiters) == (True, frozenset())


async def test_the_gateway_repeats_an_end_only_for_the_same_reason(jobs: Jobs) -> None:
    await jobs.create(NEW)
    assert await jobs.finish("j", None, "", b"x", "error", "timed_out")
    end = await jobs.finish("j", None, "", b"x", "error", "timed_out")
    assert end is not None
    assert end.repeated
    assert await jobs.finish("j", None, "", b"x", "cancelled", "cancelled") is None


async def test_a_session_that_joins_an_ending_job_waits_or_gets_the_result(jobs: Jobs) -> None:
    await job_in(jobs, JobState.RUNNING)
    sessions = [f"s{number}" for number in range(12)]

    async def finish() -> Finished | None:
        return await jobs.finish("j", 1, "n", b"result", "ok")

    answers, finished, more = await asyncio.gather(
        asyncio.gather(*(jobs.join("j", session) for session in sessions[:6])),
        finish(),
        asyncio.gather(*(jobs.join("j", session) for session in sessions[6:])),
    )
    assert finished is not None
    served = {session for session, (_, result) in zip(sessions, [*answers, *more], strict=True) if result == b"result"}
    assert served | finished.waiters == set(sessions)
    assert not served & finished.waiters


async def test_a_job_is_created_once_and_later_callers_wait_for_it(jobs: Jobs) -> None:
    created = await asyncio.gather(*(jobs.create(replace(NEW, home=f"h{n}/1"), f"s{n}") for n in range(6)))
    assert len(set(created)) == 1
    assert await jobs.waiters("j") == {f"s{n}" for n in range(6)}
    await jobs.finish("j", None, "", b"x", "cancelled")
    assert (await jobs.create(NEW, "late")).state == "FINISHED"
    assert "late" not in await jobs.waiters("j")


async def test_a_session_that_leaves_stops_waiting(jobs: Jobs) -> None:
    await jobs.create(NEW, "a")
    await jobs.join("j", "b")
    assert await jobs.leave("j", "a") == 1
    assert await jobs.leave("j", "a") == 1
    assert await jobs.leave("j", "b") == 0
    finished = await jobs.finish("j", None, "", b"x", "cancelled")
    assert finished is not None
    assert not finished.waiters


async def test_simultaneous_retries_add_one_attempt(jobs: Jobs) -> None:
    await job_in(jobs, JobState.ACCEPTED)
    retried = await asyncio.gather(*(jobs.retry("j", 1) for _ in range(5)))
    for job in retried:
        assert job is not None
        assert (job.state, job.attempt, job.node_id, job.attempt_until_ms) == ("CREATED", 2, "n", 0)
    assert await jobs.dispatch("j", 2, "m")
    assert await jobs.retry("j", 1) is None


async def test_a_job_is_not_retried_beyond_its_attempts(jobs: Jobs) -> None:
    await jobs.create(replace(NEW, max_attempts=2))
    for attempt in (1, 2):
        assert await jobs.dispatch("j", attempt, "n")
        assert bool(await jobs.retry("j", attempt)) == (attempt == 1)
    assert (await got(jobs)).state == "DISPATCHED"


async def test_an_attempt_ends_with_the_job_at_the_latest(jobs: Jobs) -> None:
    await jobs.create(replace(NEW, timeout_ms=5000))
    await jobs.dispatch("j", 1, "n")
    job = await got(jobs)
    assert job.attempt_until_ms == job.deadline_ms


async def test_a_job_is_adopted_by_one(jobs: Jobs) -> None:
    await jobs.create(NEW)
    adopted = await asyncio.gather(*(jobs.adopt("j", "a/1", f"b{number}/1") for number in range(4)))
    assert sum(adopted) == 1
    home = f"b{adopted.index(True)}/1"
    assert (await got(jobs)).home == home
    assert await jobs.adopt("j", "a/1", home)
    await jobs.finish("j", None, "", b"x", "cancelled")
    assert await jobs.adopt("j", home, "c/1")
    await jobs.release("j")
    assert not await jobs.adopt("j", "c/1", "d/1")


async def test_a_job_recreated_during_its_release_stays_listed(
    jobs: Jobs, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jobs.create(NEW)
    await jobs.finish("j", None, "", b"x", "ok")
    run = store.run

    async def emptied_before_it_is_unlisted(name: str, keys: Sequence[str], args: Sequence[Part] = ()) -> object:
        if name == "job_unlist":
            for key in (store.keys.job("j"), store.keys.jobs, store.keys.jobs_live, store.keys.jobs_ends):
                await store.do("DEL", key)
            await jobs.create(replace(NEW, timeout_ms=61_000))
        return await run(name, keys, args)

    monkeypatch.setattr(store, "run", emptied_before_it_is_unlisted)
    assert await jobs.release("j")
    assert await jobs.live() == ["j"]
    assert (await got(jobs)).state == "CREATED"


async def test_a_payload_is_kept_until_the_job_is_done(jobs: Jobs) -> None:
    data = bytes(range(256)) * 40
    await jobs.create(NEW, payload=data)
    assert await jobs.payload("j") == data
    assert await jobs.put_payload("j", data[:9])
    assert await jobs.payload("j") == data[:9]
    await jobs.finish("j", None, "", data, "ok")
    assert await jobs.payload("j") is None
    assert not await jobs.put_payload("j", data)
    assert await jobs.result("j") == data


async def test_jobs_are_listed_the_newest_first_and_counted_by_state(jobs: Jobs, store: Store) -> None:
    for number, state in enumerate(JobState):
        await job_in(jobs, state, state)
        await store.do("ZADD", store.keys.jobs, number, state)
    newest_first = list(reversed(JobState))
    assert [job.job_id for job in await jobs.list()] == newest_first
    assert [job.job_id for job in await jobs.list(limit=2)] == newest_first[:2]
    assert [job.job_id for job in await jobs.list(state=JobState.ACCEPTED)] == ["ACCEPTED"]
    assert await jobs.counts() == dict.fromkeys(JobState, 1)
    assert set(await jobs.live()) == set(JobState) - {JobState.RELEASED}


async def test_an_expired_job_is_not_listed(jobs: Jobs, store: Store) -> None:
    for job_id in ("old", "new"):
        await jobs.create(replace(NEW, job_id=job_id))
    await store.do("ZADD", store.keys.jobs_ends, 1, "old")
    await store.do("DEL", store.keys.job("old"))
    assert [job.job_id for job in await jobs.list()] == ["new"]
    assert await jobs.counts() == dict.fromkeys(JobState, 0) | {JobState.CREATED: 1}
    assert await jobs.live() == ["new"]


async def test_all_keys_of_a_job_expire(store: Store) -> None:
    jobs = Jobs(store)
    await jobs.create(NEW, "s", b"payload")
    keys = [store.keys.job("j"), store.keys.job_waiters("j"), store.keys.job_payload("j")]
    lives = [await store.do("PTTL", key) for key in keys]
    assert all(0 < life <= 60_000 + store.settings.result_ttl_ms for life in lives)
    await jobs.finish("j", None, "", b"x", "error")
    for key in (*keys[:2], store.keys.job_result("j")):
        assert 0 < await store.do("PTTL", key) <= store.settings.result_ttl_ms


async def test_an_unknown_job_never_changes_state(jobs: Jobs) -> None:
    for event in JobEvent:
        assert not await happen(jobs, event)
    assert await jobs.finish("j", None, "", b"x", "error") is None
    assert await jobs.join("j", "s") == (None, None)
    assert await jobs.leave("j", "s") == 0
    assert not await jobs.adopt("j", "a/1", "b/1")
    assert not await jobs.put_payload("j", b"x")
    assert (await jobs.get("j"), await jobs.result("j"), await jobs.payload("j")) == (None, None, None)
    assert (await jobs.waiters("j"), await jobs.list(), await jobs.live()) == (frozenset(), [], [])
    assert await jobs.counts() == dict.fromkeys(JobState, 0)


async def test_when_redis_was_emptied_jobs_are_unknown_and_may_be_created_anew(
    jobs: Jobs, empty: Callable[[], None]
) -> None:
    await job_in(jobs, JobState.RUNNING)
    empty()
    assert await jobs.finish("j", 1, "n", b"x", "ok") is None
    assert (await jobs.create(NEW)).state == "CREATED"
    assert [job.job_id for job in await jobs.list()] == ["j"]


async def test_a_result_is_forgotten_in_time(open_store: Callable[..., Store]) -> None:
    jobs = Jobs(open_store(result_ttl_ms=1000))
    await job_in(jobs, JobState.RELEASED)
    assert (await jobs.join("j", "s"))[1] == b"result"

    async def is_forgotten() -> bool:
        return await jobs.get("j") is None and await jobs.result("j") is None and not await jobs.list()

    async def is_counted_no_more() -> bool:
        await jobs.prune()
        return sum((await jobs.counts()).values()) == 0

    await until(is_forgotten, 60, "the job is forgotten")
    await until(is_counted_no_more, 60, "the job is no longer counted")
