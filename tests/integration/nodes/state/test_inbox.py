import asyncio
from collections.abc import Callable

import pytest

from pipeline.nodes.state.inbox import Envelope, Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.store import Store
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(store: Store) -> Inbox:
    """The inbox of the living instance `a`."""
    await Instances(store).present("a", "1", {})
    inbox = Inbox(store, "a")
    await inbox.open()
    return inbox


async def kinds(messages: list[Envelope] | None) -> list[str]:
    assert messages is not None
    return [message.kind for message in messages]


async def length(store: Store, instance_id: str = "a") -> int:
    return int(await store.do("XLEN", store.keys.inbox(instance_id)))


async def dead(store: Store, *kinds: str, instance_id: str = "dead") -> None:
    """Create a dead instance that has read the first message in its inbox, but not handled it."""
    await Instances(store).present(instance_id, "1", {})
    inbox = Inbox(store, instance_id)
    await inbox.open()
    for number, kind in enumerate(kinds):
        assert await inbox.send(instance_id, kind, {})
        if number == 0:
            assert await inbox.read()
    await Instances(store).leave(instance_id, "1")


async def test_streams_enqueue_and_readgroup_smoke(store: Store, inbox: Inbox) -> None:
    other = Inbox(store, "b")
    payload = bytes(range(256))
    assert await other.send("a", "assign", {"node_id": "n", "text": "é\n"}, payload)
    assert await other.send("a", "cancel", {})
    first, second = await inbox.read()
    assert first == Envelope(first.id, "assign", {"node_id": "n", "text": "é\n"}, payload)
    assert second == Envelope(second.id, "cancel", {}, b"")
    assert await inbox.pending() == 2
    await inbox.acknowledge([first.id, second.id])
    await inbox.acknowledge([first.id])
    await inbox.acknowledge([])
    assert (await inbox.pending(), await length(store), await inbox.read()) == (0, 0, [])


async def test_a_waiting_reader_gets_a_message_at_once(store: Store, inbox: Inbox) -> None:
    async def receive() -> list[Envelope]:
        return await until(inbox.read, 60, "a message comes")

    received, _ = await asyncio.gather(receive(), Inbox(store, "b").send("a", "hello", {}))
    assert await kinds(received) == ["hello"]


async def test_a_payload_of_megabytes_arrives_whole(store: Store, inbox: Inbox) -> None:
    payload = bytes(range(256)) * 4096 * 3
    await inbox.send("a", "assign", {}, payload)
    (message,) = await inbox.read()
    assert message.payload == payload


async def test_a_restarted_reader_gets_unacknowledged_messages_first_and_once(store: Store, inbox: Inbox) -> None:
    for kind in ("one", "two"):
        await inbox.send("a", kind, {})
    await inbox.read()
    await inbox.send("a", "three", {})
    started = Inbox(store, "a")
    assert await kinds(await started.read()) == ["one", "two"]
    assert await kinds(await started.read()) == ["three"]
    assert await started.read() == []


async def test_messages_to_an_unknown_instance_are_not_sent(inbox: Inbox, store: Store) -> None:
    assert not await inbox.send("nobody", "cancel", {})
    assert not await store.do("EXISTS", store.keys.inbox("nobody"))


async def test_a_duplicated_entry_is_read_as_one_message(store: Store, inbox: Inbox) -> None:
    await inbox.send("a", "partial", {"text": "x"})
    ((_, fields),) = await store.do("XRANGE", store.keys.inbox("a"), "-", "+")
    parts = [part for pair in fields.items() for part in pair]
    await store.do("XADD", store.keys.inbox("a"), "*", *parts)
    (message,) = await inbox.read()
    # The reader deleted the copy.
    assert await length(store) == await inbox.pending() == 1
    assert await kinds(await inbox.reclaim(0)) == ["partial"]
    await inbox.acknowledge([message.id])
    assert await length(store) == 0


async def test_an_idle_unhandled_message_is_redelivered(inbox: Inbox) -> None:
    await inbox.send("a", "assign", {})
    await inbox.read()
    assert await inbox.reclaim(60_000) == []
    (message,) = await inbox.reclaim(0)
    await inbox.acknowledge([message.id])
    assert await inbox.reclaim(0) == []


async def test_the_inbox_is_recreated_after_redis_was_emptied(inbox: Inbox, empty: Callable[[], None]) -> None:
    empty()
    assert await inbox.reclaim(0) == []
    assert await inbox.pending() == 0
    assert not await inbox.send("a", "assign", {})
    assert await inbox.read() == []
    assert await inbox.send("a", "assign", {})
    assert await kinds(await inbox.read()) == ["assign"]


async def test_an_unread_inbox_has_a_limited_length(open_store: Callable[..., Store]) -> None:
    store = open_store(stream_maxlen=100)
    inbox = Inbox(store, "a")
    await inbox.open()
    await asyncio.gather(*(inbox.send("a", "partial", {}) for _ in range(320)))
    assert 100 <= await length(store) <= 220


async def test_pieces_of_results_leave_room_for_assignments_in_an_unread_inbox(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(stream_maxlen=100)
    inbox = Inbox(store, "a")
    await inbox.open()
    assert await inbox.send("a", "assign", {})
    sent = [await inbox.send_dispensable("a", "partial", {}) for _ in range(320)]
    assert sum(sent) == 49
    assert (await inbox.read())[0].kind == "assign"


async def test_a_living_instance_keeps_its_inbox(store: Store, inbox: Inbox) -> None:
    await inbox.send("a", "assign", {})
    assert await Inbox(store, "b").take_dead("a") is None
    assert await kinds(await inbox.read()) == ["assign"]


async def test_one_of_two_draining_instances_gets_all_messages_once(open_store: Callable[..., Store]) -> None:
    stores = [open_store(stream_count=2) for _ in range(2)]
    sent = [str(number) for number in range(7)]
    await dead(stores[0], *sent)

    async def drain(inbox: Inbox) -> list[str] | None:
        drained_kinds: list[str] = []
        while messages := await inbox.take_dead("dead"):
            drained_kinds += await kinds(messages)
            await inbox.acknowledge_dead("dead", [message.id for message in messages])
        return drained_kinds if messages is not None else None

    drained = await asyncio.gather(*(drain(Inbox(store, name)) for store, name in zip(stores, "bc", strict=True)))
    assert [drained_kinds for drained_kinds in drained if drained_kinds] == [sent]


async def test_another_instance_continues_to_drain_a_dead_inbox(store: Store) -> None:
    await dead(store, "one", "two")
    first, second = Inbox(store, "b"), Inbox(store, "c")
    messages = await first.take_dead("dead")
    assert messages is not None
    assert await second.take_dead("dead") is None
    await first.acknowledge_dead("dead", [messages[0].id])
    await store.do("DEL", store.keys.drain("dead"))
    assert await kinds(await second.take_dead("dead")) == ["two"]
    assert await first.take_dead("dead") is None


async def test_an_instance_is_forgotten_when_its_inbox_is_empty(store: Store) -> None:
    await dead(store, "one")
    inbox, instances = Inbox(store, "b"), Instances(store)
    assert not await inbox.close_dead("dead")
    assert len(await instances.all()) == 1
    messages = await inbox.take_dead("dead")
    await inbox.acknowledge_dead("dead", [message.id for message in messages or ()])
    assert await inbox.take_dead("dead") == []
    assert await inbox.close_dead("dead")
    assert await inbox.close_dead("dead")
    assert await instances.all() == []
    assert not await inbox.send("dead", "late", {})
    assert await inbox.take_dead("dead") == []


async def test_a_trimmed_entry_leaves_the_pending_list(store: Store, inbox: Inbox) -> None:
    for kind in ("cut", "kept"):
        await inbox.send("a", kind, {})
    trimmed, _ = await inbox.read()
    await store.do("XDEL", store.keys.inbox("a"), trimmed.id)
    assert await kinds(await inbox.reclaim(0)) == ["kept"]
    assert await inbox.pending() == 1
    assert await kinds(await Inbox(store, "a").read()) == ["kept"]
    await Instances(store).leave("a", "1")
    assert await kinds(await Inbox(store, "b").take_dead("a")) == ["kept"]


async def test_an_entry_trimmed_before_a_start_is_not_read(store: Store, inbox: Inbox) -> None:
    await inbox.send("a", "cut", {})
    (trimmed,) = await inbox.read()
    await store.do("XDEL", store.keys.inbox("a"), trimmed.id)
    assert await Inbox(store, "a").read() == []
    assert await inbox.pending() == 0
