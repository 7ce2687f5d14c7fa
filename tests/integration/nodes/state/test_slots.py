import asyncio
from collections.abc import Callable

import pytest

from pipeline.nodes.state.slots import Reserved, Slots
from pipeline.nodes.state.store import Store
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
LONG_MS = 60_000


@pytest.fixture
async def slots(store: Store) -> Slots:
    return Slots(store)


async def reserve(slots: Slots, job_id: str, *, of: int = 1, ttl_ms: int = LONG_MS, model: str = "m") -> Reserved:
    return await slots.reserve("n", job_id, slots=of, model=model, ttl_ms=ttl_ms)


async def test_reservations_never_exceed_the_slots(slots: Slots) -> None:
    answers = await asyncio.gather(*(reserve(slots, f"j{number}", of=3) for number in range(30)))
    assert sorted(answers) == [Reserved.FULL] * 27 + [Reserved.HELD] * 3
    assert set(await slots.held("n")) == {f"j{n}" for n, answer in enumerate(answers) if answer is Reserved.HELD}


async def test_repeated_requests_give_a_job_one_slot(slots: Slots) -> None:
    assert await reserve(slots, "j", of=2, ttl_ms=1000) is Reserved.HELD
    first = (await slots.held("n"))["j"]
    assert await reserve(slots, "j", of=2) is Reserved.HELD
    assert (await slots.held("n"))["j"] > first
    assert await reserve(slots, "k", of=2) is Reserved.HELD
    assert await reserve(slots, "j", of=1) is Reserved.HELD
    assert await reserve(slots, "l", of=2) is Reserved.FULL


async def test_a_released_slot_is_free(slots: Slots) -> None:
    await reserve(slots, "j")
    assert await slots.release("n", "j")
    assert not await slots.release("n", "j")
    assert await reserve(slots, "k") is Reserved.HELD
    assert await slots.held("n") == await slots.held("n") != {}
    assert await slots.held("other") == {}


async def test_a_reservation_expires(slots: Slots) -> None:
    await reserve(slots, "short", of=2, ttl_ms=50)
    await reserve(slots, "long", of=2)

    async def is_free() -> bool:
        return await reserve(slots, "next", of=2) is Reserved.HELD

    await until(is_free, 60, "the short reservation has expired")
    assert set(await slots.held("n")) == {"long", "next"}


async def test_renewing_prolongs_reservations_but_revives_none(slots: Slots, store: Store) -> None:
    await reserve(slots, "j", of=3, ttl_ms=2000)
    await reserve(slots, "over", of=3)
    await store.do("ZADD", store.keys.reserved("n"), 1, "over")
    await slots.renew("n", ["j", "over", "never"], LONG_MS)
    held = await slots.held("n")
    assert set(held) == {"j"}
    assert held["j"] > await store.now_ms() + LONG_MS / 2
    await slots.renew("n", [], LONG_MS)


async def test_redis_keeps_no_keys_after_the_last_reservation(slots: Slots, store: Store) -> None:
    await reserve(slots, "j", ttl_ms=50)

    async def is_nothing() -> bool:
        keys = [store.keys.reserved("n"), store.keys.reserved_since("n")]
        return not any(await store.batch([("EXISTS", key) for key in keys]))

    await until(is_nothing, 60, "Redis has expired the keys")


async def test_only_the_named_reservation_is_released(slots: Slots) -> None:
    await reserve(slots, "j")
    (reservation,) = await slots.reservations(["n"])
    assert not await slots.release("n", "j", since_ms=reservation.since_ms - 1)
    assert await slots.release("n", "j", since_ms=reservation.since_ms)


async def test_the_cool_down_of_a_node_that_drops_jobs_doubles_each_time(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(cool_down_ms=1000)
    slots = Slots(store)
    await reserve(slots, "before", of=9)
    waits = []
    for _ in range(8):
        waits.append(await slots.cool_down("n"))
        assert await reserve(slots, "j", of=9) is Reserved.AVOIDED
        assert await reserve(slots, "before", of=9) is Reserved.HELD
        # Ten jobs lost with one node start one cool-down.
        assert 0 < await slots.cool_down("n") <= waits[-1]
        await store.do("HSET", store.keys.avoid("n"), "until", 1)
    assert waits == [1000, 2000, 4000, 8000, 16000, 32000, 64000, 64000]
    assert await reserve(slots, "j", of=9) is Reserved.HELD
    await slots.reset_cool_down("n")
    assert await slots.cool_down("n") == 1000
    await slots.reset_cool_down("n")
    assert await reserve(slots, "k", of=9) is Reserved.AVOIDED


async def test_one_of_many_reports_of_a_missing_model_is_the_first(open_store: Callable[..., Store]) -> None:
    stores = [open_store(cool_down_ms=1000) for _ in range(2)]
    first_reports = await asyncio.gather(
        *(Slots(stores[number % 2]).mark_model_missing("n", "m") for number in range(20))
    )
    assert sum(first_reports) == 1
    slots, keys = Slots(stores[0]), stores[0].keys
    assert await reserve(slots, "j") is Reserved.MODEL_MISSING
    assert await reserve(slots, "j", model="other") is Reserved.HELD
    assert await slots.mark_model_missing("n", "other")
    # The mark has expired: the next caller gets True, and the new mark lasts twice as long.
    await stores[0].do("HSET", keys.missing("n"), "m", "1:1:who")
    assert await reserve(slots, "j", of=2) is Reserved.HELD
    before_ms = await stores[0].now_ms()
    assert await slots.mark_model_missing("n", "m")
    until_ms, times, _ = (await stores[0].do("HGET", keys.missing("n"), "m")).split(b":")
    assert int(until_ms) >= before_ms + 2000
    assert times == b"2"


async def test_when_redis_was_emptied_all_slots_are_free(slots: Slots, empty: Callable[[], None]) -> None:
    await reserve(slots, "j")
    await slots.cool_down("n")
    empty()
    assert await reserve(slots, "k") is Reserved.HELD
    await slots.renew("n", ["j"], LONG_MS)
    assert set(await slots.held("n")) == {"k"}
