from collections.abc import Callable

import pytest
from redis.exceptions import ResponseError

from pipeline.nodes.state.sender import call
from pipeline.nodes.state.slots import Reserved, Slots
from pipeline.nodes.state.store import Store

pytestmark = pytest.mark.anyio


async def test_scripts_work_after_redis_has_forgotten_them(store: Store) -> None:
    slots = Slots(store)
    for _ in range(2):
        await store.redis.script_flush()
        assert await slots.reserve("n", "j", slots=1, model="", ttl_ms=60_000) is Reserved.HELD
        await store.redis.script_flush()
        assert len(await slots.reservations(["n", "m", "o"])) == 1


async def test_commands_on_any_keys_are_answered_in_their_order(store: Store) -> None:
    keys = [f"k{number}" for number in range(40)]
    await store.batch([("SET", key, key) for key in keys[::2]])
    expected = [key.encode() if number % 2 == 0 else None for number, key in enumerate(keys)]
    assert await store.get_many(keys) == expected
    assert await store.batch([("GET", key) for key in keys]) == expected
    assert await store.get_many([]) == await store.batch([]) == []


async def test_operations_are_counted_with_their_errors(store: Store) -> None:
    await store.do("SADD", "set", "x")
    with pytest.raises(ResponseError):
        await store.do("INCR", "set")
    with pytest.raises(ResponseError):
        await store.batch([("GET", "other"), ("INCR", "set")], "both")
    await store.run("now", ["any"])
    assert store.ops == {("sadd", "ok"): 1, ("incr", "error"): 1, ("both", "error"): 1, ("now", "ok"): 1}


async def test_the_time_comes_from_the_server(store: Store, empty: Callable[[], None]) -> None:
    first = await store.now_ms()
    empty()
    assert first <= (await store.batch([call("now", ["a"]), call("now", ["b"])]))[1]
