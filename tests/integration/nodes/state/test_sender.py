import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis import RedisError
from redis.exceptions import ResponseError

from pipeline.nodes.settings import GatewayRedisSettings
from pipeline.nodes.state.sender import BATCH_SIZE, CLUSTER_CONCURRENCY, MAX_BATCHES, Command, Sender, call
from pipeline.nodes.state.store import Store

pytestmark = pytest.mark.anyio
MANY = 60


@pytest.fixture
async def sendings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands of each batch."""
    sizes: list[int] = []
    answers = Sender._answers

    async def counted(self: Sender, commands: Sequence[Command]) -> list[Any]:
        sizes.append(len(commands))
        return await answers(self, commands)

    monkeypatch.setattr(Sender, "_answers", counted)
    return sizes


async def test_simultaneous_commands_share_batches_to_one_server(
    store: Store, where: GatewayRedisSettings, sendings: list[int]
) -> None:
    answers = await asyncio.gather(*(store.do("INCR", f"k{number % 7}") for number in range(MANY)))
    assert sorted(answers) == sorted(number // 7 + 1 for number in range(MANY))
    if where.mode == "cluster":
        assert sendings == [1] * MANY
    else:
        assert sendings == [*[1] * MAX_BATCHES, MANY - MAX_BATCHES]


async def test_a_batch_has_a_limit(store: Store, where: GatewayRedisSettings, sendings: list[int]) -> None:
    large: list[Command] = [("GET", "x")] * (BATCH_SIZE + 1)
    await asyncio.gather(*(store.do("GET", "x") for _ in range(MAX_BATCHES)), *(store.batch(large) for _ in range(2)))
    if where.mode == "single":
        assert sendings == [*[1] * MAX_BATCHES, *[BATCH_SIZE + 1] * 2]


async def test_a_cluster_answers_more_commands_than_it_has_connections(store: Store) -> None:
    answers = await asyncio.gather(*(store.do("INCR", "k") for _ in range(3 * CLUSTER_CONCURRENCY)))
    assert sorted(answers) == list(range(1, 3 * CLUSTER_CONCURRENCY + 1))


async def test_an_error_reaches_only_its_caller(store: Store) -> None:
    await store.do("SADD", "set", "x")
    acts = [store.do("INCR", "set" if number == 7 else "k") for number in range(20)]
    answers = await asyncio.gather(*acts, return_exceptions=True)
    assert isinstance(answers[7], ResponseError)
    assert [type(answer) for place, answer in enumerate(answers) if place != 7] == [int] * 19


async def test_a_batch_resends_scripts_that_redis_has_forgotten(store: Store) -> None:
    await store.redis.script_flush()
    answers = await asyncio.gather(*(store.batch([call("now", ["k"]), ("GET", "k")]) for _ in range(9)))
    assert all(now > 0 and none is None for now, none in answers)


async def test_a_cancelled_caller_does_not_cancel_other_commands(store: Store) -> None:
    acts = [asyncio.create_task(store.do("INCR", f"k{number}")) for number in range(20)]
    await asyncio.sleep(0)
    for act in acts[10:15]:
        act.cancel()
    answers = await asyncio.gather(*acts, return_exceptions=True)
    assert answers[:10] + answers[15:] == [1] * 15
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[10:15])
    assert await store.do("INCR", "k0") == 2


async def test_all_waiting_commands_fail_when_redis_is_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_: Sender, commands: Sequence[Command]) -> list[Any]:
        await asyncio.sleep(0)
        raise RedisError(f"{len(commands)} commands")

    with monkeypatch.context() as patch:
        patch.setattr(Sender, "_answers", away)
        answers = await asyncio.gather(*(store.do("GET", "k") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(answer, RedisError) for answer in answers)
    assert store.ops == {("get", "error"): 20}
    assert await store.do("INCR", "k") == 1
