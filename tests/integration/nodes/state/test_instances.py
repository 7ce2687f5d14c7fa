import asyncio
from collections.abc import Callable

import pytest

from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def instances(store: Store) -> Instances:
    return Instances(store)


async def test_living_instances_are_known_with_their_processes(instances: Instances, store: Store) -> None:
    before_ms = await store.now_ms()
    await instances.present("a", "1", {"port": 1})
    await instances.present("b", "2", {})
    assert await instances.living() == {"a": "1", "b": "2"}
    assert await instances.is_alive("a/1")
    assert not await instances.is_alive("a/0")
    assert not await instances.is_alive("c/1")
    first, _ = await instances.all()
    assert (first.instance_id, first.boot, first.info, first.alive) == ("a", "1", {"port": 1}, True)
    assert first.last_seen_ms >= before_ms
    assert 0 < await store.do("PTTL", store.keys.presence("a")) <= store.settings.owner_ttl_seconds * 1000


async def test_a_dead_instance_is_listed_until_its_inbox_is_closed(instances: Instances) -> None:
    await instances.present("a", "1", {})
    await instances.leave("a", "1")
    assert await instances.living() == {}
    assert [instance.alive for instance in await instances.all()] == [False]


async def test_a_process_that_was_replaced_does_not_take_its_successors_presence_along(instances: Instances) -> None:
    await instances.present("a", "1", {})
    await instances.present("a", "2", {})
    await instances.leave("a", "1")
    assert await instances.living() == {"a": "2"}


async def test_a_process_learns_that_another_has_taken_its_name(instances: Instances, store: Store) -> None:
    assert await instances.present("a", "1", {})
    assert await instances.present("a", "1", {}, begins=False)
    assert await instances.present("a", "2", {}), "a starting process takes the name"
    assert not await instances.present("a", "1", {}, begins=False)
    assert await instances.living() == {"a": "2"}
    await store.do("DEL", store.keys.presence("a"))
    assert await instances.present("a", "2", {}, begins=False), (
        "Redis was emptied, or the process was suspended for long"
    )


async def test_a_node_and_a_session_belong_to_the_instance_that_took_them_last(instances: Instances) -> None:
    assert await instances.nodes.take("x", "a") == ""
    assert await instances.nodes.take("x", "b") == "a"
    assert await instances.sessions.take("x", "a") == ""
    assert (await instances.nodes.owner("x"), await instances.sessions.owner("x")) == ("b", "a")
    await instances.nodes.drop("x", "a")
    assert await instances.nodes.owner("x") == "b"
    await instances.nodes.drop("x", "b")
    await instances.sessions.drop("x", "a")
    assert (await instances.nodes.owner("x"), await instances.sessions.owner("x")) == ("", "")


async def test_each_concurrent_owner_of_a_node_learns_its_predecessor(instances: Instances) -> None:
    before = await asyncio.gather(*(instances.nodes.take("x", f"i{number}") for number in range(8)))
    owner = await instances.nodes.owner("x")
    assert sorted([*before, owner]) == sorted(["", *(f"i{number}" for number in range(8))])


async def test_renewing_keeps_own_names_and_returns_those_of_other_instances(
    instances: Instances, store: Store, empty: Callable[[], None]
) -> None:
    for node in ("mine", "theirs"):
        await instances.nodes.take(node, "a")
    await instances.sessions.take("s", "a")
    await instances.nodes.take("theirs", "b")
    await store.do("PEXPIRE", store.keys.node_owner("mine"), 50_000)
    assert await instances.nodes.renew("a", ["mine", "theirs"]) == {"theirs"}
    assert await instances.sessions.renew("a", ["s"]) == set()
    assert await store.do("PTTL", store.keys.node_owner("mine")) <= store.settings.owner_ttl_seconds * 1000
    assert await instances.nodes.owner("theirs") == "b"
    empty()
    assert await instances.nodes.renew("a", ["mine"]) == set()
    assert await instances.sessions.renew("a", ["s"]) == set()
    assert (await instances.nodes.owner("mine"), await instances.sessions.owner("s")) == ("a", "a")
    assert await instances.nodes.renew("a", []) == set()


async def test_an_empty_redis_has_no_instances(instances: Instances) -> None:
    assert (await instances.living(), await instances.all()) == ({}, [])
    assert (await instances.nodes.owner("x"), await instances.sessions.owner("x")) == ("", "")
    await instances.leave("a", "1")
    await instances.nodes.drop("x", "a")
