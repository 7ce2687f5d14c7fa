import asyncio
from collections.abc import Callable

import pytest

from pipeline.nodes.state.queue import Waiter, Waiting
from pipeline.nodes.state.store import Store
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
POOL, LONG_MS = "text:mö{del}", 60_000


@pytest.fixture
async def waiting(store: Store) -> Waiting:
    return Waiting(store)


async def enter(waiting: Waiting, *job_ids: str, ttl_ms: int = LONG_MS) -> None:
    """Put jobs in line. The first letter of an id names the requester."""
    for job_id in job_ids:
        await waiting.enter(POOL, job_id, job_id[0], "h/1", ttl_ms)


async def order(waiting: Waiting) -> list[str]:
    return [waiter.job_id for waiter in await waiting.heads(POOL, 100)]


async def served(waiting: Waiting) -> str:
    (first,) = await waiting.heads(POOL, 1)
    assert await waiting.leave(POOL, first.job_id)
    return first.job_id


async def test_requesters_take_turns_regardless_of_their_number_of_jobs(waiting: Waiting) -> None:
    await enter(waiting, "a1", "a2", "a3", "b1", "c1", "b2")
    assert await order(waiting) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert await waiting.heads(POOL, 1) == [Waiter("a1", "h/1", "a")]
    assert await waiting.heads(POOL, 0) == []


async def test_a_late_requester_is_next_without_passing_earlier_waiters(waiting: Waiting) -> None:
    await enter(waiting, *(f"a{number}" for number in range(8)))
    assert [await served(waiting) for _ in range(3)] == ["a0", "a1", "a2"]
    await enter(waiting, "b0", "b1")
    assert [await served(waiting) for _ in range(4)] == ["b0", "a3", "b1", "a4"]


async def test_a_requester_with_one_job_at_a_time_has_every_second_turn(waiting: Waiting) -> None:
    await enter(waiting, *(f"a{number:02}" for number in range(12)))
    turns = []
    for number in range(6):
        await enter(waiting, f"b{number}")
        turns += [await served(waiting), await served(waiting)]
    assert sorted(turns) == [*(f"a{number:02}" for number in range(6)), *(f"b{number}" for number in range(6))]


async def test_a_job_that_leaves_the_line_moves_no_other_job(waiting: Waiting) -> None:
    await enter(waiting, "a0", "a1", "a2", "b0", "b1")
    assert await waiting.leave(POOL, "a2")
    await enter(waiting, "c0")
    assert await order(waiting) == ["a0", "b0", "c0", "a1", "b1"]


async def test_a_requester_that_takes_jobs_back_loses_no_turns(waiting: Waiting) -> None:
    await enter(waiting, *(f"a{number}" for number in range(9)), "b0", "b1", "b2")
    assert [await served(waiting), await served(waiting)] == ["a0", "b0"]
    for number in range(1, 8):
        await waiting.leave(POOL, f"a{number}")
    await enter(waiting, "a9")
    # The first job taken back was at the head of the line, so its requester used a turn.
    assert await order(waiting) == ["b1", "a8", "b2", "a9"]


async def test_an_idle_requester_saves_no_turns(waiting: Waiting) -> None:
    await enter(waiting, "b0", *(f"a{number}" for number in range(6)))
    assert [await served(waiting) for _ in range(5)] == ["a0", "b0", "a1", "a2", "a3"]
    await enter(waiting, "b1", "b2", "b3")
    assert await order(waiting) == ["b1", "a4", "b2", "a5", "b3"]


async def test_a_job_that_reenters_keeps_its_place_and_may_change_its_home(waiting: Waiting) -> None:
    await enter(waiting, "a0", "b0")
    await waiting.enter(POOL, "a0", "a", "g/2", LONG_MS)
    assert await waiting.heads(POOL, 9) == [Waiter("a0", "g/2", "a"), Waiter("b0", "h/1", "b")]


async def test_a_job_leaves_once(waiting: Waiting) -> None:
    await enter(waiting, "a0")
    assert sorted(await asyncio.gather(*(waiting.leave(POOL, "a0") for _ in range(4)))) == [False] * 3 + [True]
    assert not await waiting.leave(POOL, "never")
    assert not await waiting.leave("other:pool", "a0")


async def test_jobs_entered_by_several_instances_have_one_place_each(open_store: Callable[..., Store]) -> None:
    queues = [Waiting(open_store()) for _ in range(3)]
    jobs = [f"{requester}{number}" for number in range(6) for requester in "ab"]
    await asyncio.gather(*(enter(queues[place % 3], job_id) for place, job_id in enumerate(jobs)))
    line = await order(queues[0])
    assert sorted(line) == sorted(jobs)
    assert all({job_id[0] for job_id in line[place : place + 2]} == {"a", "b"} for place in range(0, 12, 2))


async def test_an_expired_job_leaves_the_line(waiting: Waiting, store: Store) -> None:
    await enter(waiting, "a0", ttl_ms=50)
    await enter(waiting, "a1")

    async def has_ended() -> bool:
        return await order(waiting) == ["a1"]

    await until(has_ended, 60, "the first job has expired")
    assert not await waiting.leave(POOL, "a0")
    assert await waiting.pools() == {POOL: 1}


async def test_pools_are_listed_while_jobs_wait_in_them(waiting: Waiting, store: Store) -> None:
    await enter(waiting, "a0", "a1")
    await waiting.enter("page:", "b0", "b", "h/1", LONG_MS)
    assert await waiting.pools() == {POOL: 2, "page:": 1}
    await waiting.leave("page:", "b0")
    assert await waiting.pools() == {POOL: 2}
    assert await store.do("SMEMBERS", store.keys.pools) == {POOL.encode()}
    await waiting.enter("page:", "b0", "b", "h/1", LONG_MS)
    assert await waiting.pools() == {POOL: 2, "page:": 1}


async def test_an_empty_line_leaves_no_keys(waiting: Waiting, store: Store) -> None:
    await enter(waiting, "a0", "b0")
    for job_id in ("a0", "b0"):
        await waiting.leave(POOL, job_id)
    assert not any(await store.batch([("EXISTS", key) for key in store.keys.waiting(POOL)]))
    assert (await order(waiting), await waiting.pools()) == ([], {})


async def test_when_redis_was_emptied_jobs_enter_anew(waiting: Waiting, empty: Callable[[], None]) -> None:
    await enter(waiting, "a0", "a1")
    empty()
    assert (await order(waiting), await waiting.pools()) == ([], {})
    await enter(waiting, "a1", "b0")
    assert await order(waiting) == ["a1", "b0"]
