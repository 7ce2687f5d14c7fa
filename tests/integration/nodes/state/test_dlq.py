from collections.abc import Callable

import pytest

from pipeline.nodes.state.dlq import DlqEntry, dlq, drop, replay, scan_dlq
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.store import Store
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
PAYLOAD = bytes(range(256))


async def given_out(store: Store, times: int, instance_id: str = "a", kind: str = "assign") -> Inbox:
    """Create an instance's inbox with an unhandled message after this number of deliveries."""
    await Instances(store).present(instance_id, "1", {})
    inbox = Inbox(store, instance_id)
    await inbox.open()
    await inbox.send(instance_id, kind, {"node_id": "n"}, PAYLOAD)
    assert await inbox.read()
    for _ in range(times - 1):
        assert await inbox.reclaim(0)
    return inbox


async def moved(store: Store, instance_id: str = "a") -> DlqEntry:
    """Wait until the idle message becomes a dead letter, and return it."""

    async def scan() -> int:
        return await scan_dlq(store, instance_id)

    assert await until(scan, 60, "the dead letter is moved") == 1
    (entry,) = await dlq(store)
    return entry


async def test_a_replayed_dead_letter_is_read_again(open_store: Callable[..., Store]) -> None:
    store = open_store(dlq_max_deliveries=3)
    inbox = await given_out(store, 4)
    before_ms = await store.now_ms()
    entry = await moved(store)
    assert (entry.instance_id, entry.kind, entry.body) == ("a", "assign", {"node_id": "n"})
    assert entry.deliveries == 4
    assert entry.moved_ms >= before_ms
    assert entry.source_id != entry.id
    assert (await inbox.pending(), await store.do("XLEN", store.keys.inbox("a"))) == (0, 0)
    assert await scan_dlq(store, "a") == 0
    assert await replay(store, "a", entry.id)
    assert not await replay(store, "a", entry.id)
    assert await dlq(store) == []
    # The same reader, which remembers the first sending, reads the message again.
    (message,) = await inbox.read()
    assert (message.kind, message.body, message.payload) == ("assign", {"node_id": "n"}, PAYLOAD)
    await inbox.acknowledge([message.id])
    assert (await inbox.pending(), await scan_dlq(store, "a")) == (0, 0)


async def test_messages_with_few_deliveries_or_in_progress_stay(open_store: Callable[..., Store]) -> None:
    seldom = open_store(dlq_max_deliveries=3)
    inbox = await given_out(seldom, 3)

    read_ms = await seldom.now_ms()

    async def is_idle() -> bool:
        return await seldom.now_ms() > read_ms + 2

    await until(is_idle, 60, "the message was idle")
    assert await scan_dlq(seldom, "a") == 0
    busy = open_store(dlq_max_deliveries=1, dlq_min_idle_ms=60_000)
    assert await scan_dlq(busy, "a") == 0
    disabled = open_store(dlq_max_deliveries=1, dlq_enabled=False)
    assert await scan_dlq(disabled, "a") == 0
    assert await inbox.pending() == 1


async def test_a_message_with_too_many_deliveries_is_not_delivered_again(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(dlq_max_deliveries=2)
    inbox = await given_out(store, 3)
    # The same holds for a dead instance's inbox: claiming a message each second would keep it from becoming idle.
    assert await inbox.reclaim(0) == []
    await Instances(store).leave("a", "1")
    assert await Inbox(store, "b").take_dead("a") == []
    assert not await Inbox(store, "b").close_dead("a")
    assert (await moved(store)).deliveries == 3
    without = Inbox(open_store(dlq_max_deliveries=2, dlq_enabled=False), "b")
    await given_out(store, 3)
    await Instances(store).leave("a", "1")
    assert len(await without.take_dead("a") or []) == 1


async def test_the_scan_finds_due_messages_behind_many_others(open_store: Callable[..., Store]) -> None:
    store = open_store(dlq_max_deliveries=1, dlq_scan_count=2)
    inbox = Inbox(store, "a")
    await inbox.open()
    for number in range(7):
        await inbox.send("a", str(number), {})
    messages = await inbox.read()
    for message in messages[4:]:
        await store.do("XCLAIM", store.keys.inbox("a"), store.settings.stream_group, "a", 0, message.id)
    moved = 0

    async def all_moved() -> bool:
        nonlocal moved
        moved += await scan_dlq(store, "a")
        return moved == 3

    await Instances(store).present("a", "1", {})
    await until(all_moved, 60, "the last three messages are moved")
    assert {entry.kind for entry in await dlq(store)} == {"4", "5", "6"}


async def test_a_dead_letter_outlives_its_instance_and_is_replayed_to_another(open_store: Callable[..., Store]) -> None:
    store = open_store(dlq_max_deliveries=1)
    inbox = await given_out(store, 2)
    entry = await moved(store)
    await Instances(store).leave("a", "1")
    other = Inbox(store, "b")
    assert await other.take_dead("a") == []
    assert await other.close_dead("a")
    assert await Instances(store).all() == []
    assert await dlq(store) == [entry]
    assert await replay(store, "a", entry.id)
    (dead_instance,) = await Instances(store).all()
    (message,) = await other.take_dead(dead_instance.instance_id) or []
    assert (message.kind, message.payload) == (entry.kind, PAYLOAD)
    assert await inbox.pending() == 1


async def test_a_dead_letter_is_dropped_once(open_store: Callable[..., Store]) -> None:
    store = open_store(dlq_max_deliveries=1)
    await given_out(store, 2)
    entry = await moved(store)
    assert await drop(store, "a", entry.id)
    assert not await drop(store, "a", entry.id)
    assert not await replay(store, "a", entry.id)
    assert await dlq(store) == []


async def test_dead_letters_are_listed_the_newest_first(open_store: Callable[..., Store]) -> None:
    store = open_store(dlq_max_deliveries=1)
    for instance_id in "abc":
        await given_out(store, 2, instance_id, kind=instance_id)

        async def scan(instance_id: str = instance_id) -> int:
            return await scan_dlq(store, instance_id)

        await until(scan, 60, "the dead letter is moved")
    assert [entry.kind for entry in await dlq(store)] == ["c", "b", "a"]
    assert [entry.kind for entry in await dlq(store, 2)] == ["c", "b"]


async def test_without_an_inbox_no_message_is_moved(store: Store) -> None:
    assert await scan_dlq(store, "nobody") == 0
    assert await dlq(store) == []
    assert not await drop(store, "nobody", "1-1")
    assert not await replay(store, "nobody", "1-1")
