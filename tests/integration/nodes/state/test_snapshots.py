import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.nodes.protocol import Capability, Offer
from pipeline.nodes.state.snapshots import DisconnectedNode, NodeState, Snapshots
from pipeline.nodes.state.store import Store

pytestmark = pytest.mark.anyio
OFFERS = (Offer(capability=Capability.TEXT, models=("m", "*")), Offer(capability=Capability.PAGE))
NODE = NodeState(
    "n",
    "Näme",
    "token",
    "a",
    slots=2,
    used=1,
    offers=OFFERS,
    latency_ms={"text": 12.5},
    draining=True,
    software="s/1",
    connected_ms=1,
    last_seen_ms=2,
)


@pytest.fixture
async def snapshots(store: Store) -> Snapshots:
    return Snapshots(store)


async def test_node_snapshot_roundtrip_smoke(snapshots: Snapshots, store: Store) -> None:
    other = replace(NODE, node_id="o", instance_id="b")
    await snapshots.put([NODE])
    await Snapshots(store).put([other])
    assert await Snapshots(store).all() == await snapshots.all() == [NODE, other]
    assert await snapshots.listed() == [NODE, other]
    assert 0 < await store.do("PTTL", store.keys.node_presence("n")) <= 15_000


async def test_unknown_fields_of_a_newer_instance_are_ignored(snapshots: Snapshots, store: Store) -> None:
    await snapshots.put([NODE])
    key = store.keys.node_snapshot("n")
    written = json.loads(await store.do("GET", key))
    written |= {"temperature": 80, "offers": [*written["offers"], {"capability": "speech", "models": ["new"]}]}
    await store.do("SET", key, json.dumps(written))
    assert await Snapshots(store).all() == [NODE]


async def test_changed_snapshots_are_read(snapshots: Snapshots, store: Store) -> None:
    reader = Snapshots(store)
    latency = {"text": 1.0}
    await snapshots.put([replace(NODE, latency_ms=latency)])
    assert (await reader.all())[0].latency_ms == {"text": 1.0}
    latency["text"] = 2.0
    await snapshots.put([replace(NODE, used=0, latency_ms=latency, last_seen_ms=99)])
    (node,) = await reader.all()
    assert (node.used, node.latency_ms, node.last_seen_ms) == (0, {"text": 2.0}, 99)


async def test_a_thousand_nodes_are_a_handful_of_commands_and_fewer_if_little_changes(
    snapshots: Snapshots, store: Store
) -> None:
    nodes = [replace(NODE, node_id=f"n{number:04}") for number in range(1000)]
    await snapshots.put(nodes)
    assert store.ops == {("snapshot_put", "ok"): 1}
    reader = Snapshots(store)
    assert await reader.all() == nodes
    assert store.ops["smembers", "ok"] == 1
    assert store.ops["mget", "ok"] == 2
    store.ops.clear()
    nodes[7] = replace(nodes[7], used=0)
    await snapshots.put(nodes[7:8])
    assert await reader.all() == nodes
    assert store.ops == {("snapshot_put", "ok"): 1, ("smembers", "ok"): 1, ("mget", "ok"): 2}
    store.ops.clear()
    assert await reader.all() == nodes
    assert store.ops == {("smembers", "ok"): 1, ("mget", "ok"): 1}


async def test_a_removed_node_is_not_present_but_still_listed(snapshots: Snapshots, store: Store) -> None:
    reader = Snapshots(store)
    await snapshots.put([NODE, replace(NODE, node_id="o")])
    assert len(await reader.all()) == 2
    assert not await snapshots.remove("n", "b")
    assert await snapshots.remove("n", "a")
    assert not await snapshots.remove("n")
    assert [node.node_id for node in await reader.all()] == ["o"]
    assert (await reader.listed())[0] == DisconnectedNode("n", "Näme", 2)
    await snapshots.put([NODE])
    assert await reader.all() == [NODE, replace(NODE, node_id="o")]


async def test_a_node_without_presence_counts_as_gone(snapshots: Snapshots, store: Store) -> None:
    await snapshots.put([NODE])
    assert await store.do("DEL", store.keys.node_presence("n"))  # as if it had expired
    assert await snapshots.all() == []
    assert await snapshots.listed() == [DisconnectedNode("n", "Näme", 2)]


async def test_nodes_are_written_anew_after_redis_was_emptied(
    snapshots: Snapshots, store: Store, empty: Callable[[], None]
) -> None:
    reader = Snapshots(store)
    await snapshots.put([NODE])
    assert await reader.all() == [NODE]
    empty()
    assert (await reader.all(), await reader.listed()) == ([], [])
    await snapshots.put([NODE])
    assert await reader.all() == [NODE]


async def test_nodes_that_are_long_gone_are_forgotten(open_store: Callable[..., Store]) -> None:
    store = open_store(node_snapshot={"remove_stale_after_seconds": 60})
    snapshots, now_ms = Snapshots(store), await store.now_ms()
    names = {"gone-long": now_ms - 61_000, "gone": now_ms - 59_000, "there": now_ms - 61_000}
    await snapshots.put([replace(NODE, node_id=name, last_seen_ms=seen_ms) for name, seen_ms in names.items()])
    for name in ("gone-long", "gone"):
        await snapshots.remove(name)
    assert await snapshots.clean() == 1
    assert [node.node_id for node in await snapshots.listed()] == ["gone", "there"]
    assert await snapshots.clean() == 0
    assert not await store.do("EXISTS", store.keys.node_snapshot("gone-long"))


async def test_an_empty_redis_has_no_nodes(snapshots: Snapshots) -> None:
    assert (await snapshots.all(), await snapshots.listed(), await snapshots.clean()) == ([], [], 0)
    assert not await snapshots.remove("n")
