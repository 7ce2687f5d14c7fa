"""Admission of items: in turn over bases, oldest first, within every limit, even with many simultaneous admissions."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import func, select, update

from pipeline.engine import live_settings as live
from pipeline.flows.knowledge import plan, service
from pipeline.flows.knowledge.flow import FLOW
from pipeline.flows.knowledge.live_settings import live_settings
from pipeline.flows.knowledge.models import BASES, ITEMS
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.work import admission, content
from pipeline.storage.context import Context
from tests.support.knowledge import add_base, add_item
from tests.support.knowledge_driver import WORKER, Driver

MB = 1_000_000


def limit(context: Context, **values: int) -> None:
    """Set live settings of the flow."""
    known = live_settings(context.settings)
    for name, value in values.items():
        context.db.run(lambda session, n=name, v=value: live.change(session, known, f"knowledge.{n}", str(v)))


def fill(context: Context, *counts: int, **columns: Any) -> dict[str, list[str]]:
    """Bases with these numbers of items in line; returns the items of each, oldest first."""
    item_ids = {}
    for number, count in enumerate(counts):
        base = add_base(context, f"base {number} {columns}")
        item_ids[base] = [add_item(context, base, position=at, **columns) for at in range(1, count + 1)]
    return item_ids


def base_of(bases: dict[str, list[str]], item_id: str) -> str:
    return next(base for base, ids in bases.items() if item_id in ids)


def end(context: Context, *item_ids: str, status: ItemStatus = ItemStatus.COMPLETED) -> None:
    items = update(ITEMS).where(ITEMS.c.id.in_(item_ids))
    context.db.run(lambda session: session.execute(items.values(status=status, admitted_at=None)))


def under_way(context: Context) -> int:
    with context.db.read() as session:
        return int(session.execute(select(func.count()).select_from(ITEMS).where(admission.UNDER_WAY)).scalar_one())


def test_turns_go_round_the_bases_and_the_oldest_of_each_is_first(context: Context) -> None:
    bases = fill(context, 50, 2, 5)
    order: list[str] = []
    while admitted := admission.admit(context):
        assert len(admitted) <= 3, "at most three items are read at once"
        order += admitted
        end(context, *admitted)
    assert len(order) == 57
    for ids in bases.values():
        assert [item_id for item_id in order if item_id in ids] == ids
    large, small, middle = bases
    turns = [base_of(bases, item_id) for item_id in order]
    assert turns[:6] == [large, small, middle] * 2
    assert Counter(turns[:12]) == {large: 5, small: 2, middle: 5}


def test_a_later_base_is_not_delayed_by_a_full_line(context: Context) -> None:
    fill(context, 100)
    for _ in range(5):
        end(context, *admission.admit(context))
    late = {item_id for ids in fill(context, 5, workload=2).values() for item_id in ids}
    turns = 0
    while late:
        admitted = admission.admit(context)
        end(context, *admitted)
        late -= set(admitted)
        turns += len(admitted)
    assert turns <= 2 * 5 + 1, "the small base gets every second turn"


LIMITS = [("global_concurrency", 3), ("io_concurrency", 2), ("per_base_concurrency", 1)]


@pytest.mark.parametrize(("name", "most"), LIMITS)
def test_limit_holds_and_can_be_changed_live(context: Context, name: str, most: int) -> None:
    fill(context, 4, 4)
    limit(context, global_concurrency=8, io_concurrency=8, per_base_concurrency=8)
    limit(context, **{name: most})
    expected = 2 if name == "per_base_concurrency" else most
    assert len(admission.admit(context)) == expected
    assert admission.admit(context) == []
    limit(context, global_concurrency=8, io_concurrency=8, per_base_concurrency=8)
    assert len(admission.admit(context)) == 8 - expected


def test_items_that_are_embedded_make_room_for_reading_but_not_in_all(context: Context) -> None:
    fill(context, 9, 9)
    for expected in (3, 1, 0):
        admitted = admission.admit(context)
        assert len(admitted) == expected
        done = update(ITEMS).where(ITEMS.c.id.in_(admitted)).values(status=ItemStatus.EMBEDDING)
        context.db.run(lambda session, done=done: session.execute(done))
    assert under_way(context) == 4


def test_large_items_take_at_most_half_and_delay_no_small_item_of_another_base(context: Context) -> None:
    large = fill(context, 4, 4, workload=30 * MB)
    small = fill(context, 4, workload=1)
    limit(context, io_concurrency=4)
    admitted = admission.admit(context)
    assert Counter(item_id in next(iter(small.values())) for item_id in admitted) == {False: 2, True: 2}
    large_ids = {item_id for ids in large.values() for item_id in ids}
    end(context, next(item_id for item_id in admitted if item_id in large_ids))
    (next_admitted,) = admission.admit(context)
    assert next_admitted in large_ids, "large items keep their turn"


def test_a_single_place_is_enough_for_a_large_item(context: Context) -> None:
    fill(context, 1, workload=30 * MB)
    limit(context, global_concurrency=1)
    assert len(admission.admit(context)) == 1


def test_many_simultaneous_admissions_never_exceed_a_limit(context: Context) -> None:
    bases = fill(context, 20, 20, 20)
    barrier = Barrier(6)

    def some(_: int) -> list[str]:
        barrier.wait(60)
        return admission.admit(context)

    limit(context, io_concurrency=4)
    with ThreadPoolExecutor(6) as pool:
        admitted = [item_id for batch in pool.map(some, range(6)) for item_id in batch]
    assert len(admitted) == len(set(admitted)) == under_way(context) == 4
    assert max(Counter(base_of(bases, item_id) for item_id in admitted).values()) <= 2


def test_simultaneous_admission_deletion_and_reprocessing_cause_no_deadlock(context: Context, driver: Driver) -> None:
    """All transactions lock a base before its items, so they never deadlock, and no item is lost."""
    bases = fill(context, 12, 12, 12)
    doomed, *others = bases
    barrier = Barrier(4)

    def admit() -> None:
        for _ in range(10):
            end(context, *admission.admit(context))

    def reprocess() -> None:
        for base in others:
            for item_id in bases[base]:
                service.reprocess(context, item_id)

    def delete() -> None:
        service.delete_base(context, doomed)

    def edit() -> None:
        for number in range(10):
            service.edit_base(context, others[0], description=str(number))

    def go(act: object) -> None:
        barrier.wait(60)
        act()  # type: ignore[operator]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(go, (admit, reprocess, delete, edit)))
    with context.db.read() as session:
        rows = session.execute(select(ITEMS).where(ITEMS.c.base_id.in_(others))).all()
        marks = session.execute(select(ITEMS.c.deleting).where(ITEMS.c.base_id == doomed)).scalars().all()
    assert all(row.status in {ItemStatus.PENDING, ItemStatus.COMPLETED} for row in rows)
    assert marks == [True] * 12


def test_item_of_a_lost_worker_stays_under_way(context: Context, driver: Driver, base: str) -> None:
    first, second, third = driver.note(base, "one", "two", "three")
    assert admission.admit(context) == [first, second]
    assert context.db.run(lambda session: content._claim(session, context, first, driver.owner()))
    assert FLOW.free_lost(context, {WORKER}) == 1
    assert driver.row(first).status == ItemStatus.PENDING
    assert driver.row(first).admitted_at is not None
    assert admission.admit(context) == []
    assert first in [step.id for step in driver.due()]
    driver.work_off()
    assert driver.done == [first, second, third]


@pytest.mark.parametrize("how", ["cancelled", "deleted", "failed", "lost for good"])
def test_item_that_ends_gives_its_place_to_the_next(context: Context, driver: Driver, base: str, how: str) -> None:
    limit(context, per_base_concurrency=1)
    first, second = driver.note(base, "one", "two")
    assert admission.admit(context) == [first]
    if how == "cancelled":
        service.cancel(context, first)
    elif how == "deleted":
        service.delete_items(context, first)
    elif how == "failed":
        driver.change(first, content_sha256="gone")
        driver.read(first)
    else:
        for _ in range(3):
            assert context.db.run(lambda session: content._claim(session, context, first, driver.owner()))
            FLOW.free_lost(context, {WORKER})
    assert driver.row(first).admitted_at is None
    assert admission.admit(context) == [second]


def test_base_that_is_being_deleted_has_no_turn(context: Context) -> None:
    bases = fill(context, 3, 1)
    doomed, other = bases
    context.db.run(lambda session: session.execute(update(BASES).where(BASES.c.id == doomed).values(deleting=True)))
    assert admission.admit(context) == bases[other]


def test_place_in_line_is_not_lost_while_no_messages_are_sent(context: Context, driver: Driver, base: str) -> None:
    """Admission commits before messages are sent: if Redis is down then, the sweeper finds the admitted items."""
    ids = driver.note(base, "one", "two")
    assert admission.admit(context) == ids
    assert [step.id for step in plan.due_steps(context, list(plan.runnable(context, ())))] == ids
