from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.lanes import MAX_BATCH, MIN_SLICE_S, Batch, Hop, run_lane

MANY = 100_000


class FakeWork:
    """A scope in memory: units 0, 1, 2 … with a cost in seconds each; performing one moves the clock."""

    def __init__(self, units: int, cost_s: Callable[[int], float], others: Callable[[], bool] = lambda: False) -> None:
        self.now = 1000.0
        self.waiting = list(range(units))
        self.claimed: set[int] = set()
        self.done: list[int] = []
        self.performed: list[int] = []
        self.begun_at: list[float] = []
        self.batches: list[int] = []
        self.transactions = 0
        self._cost_s = cost_s
        self._others = others

    def clock(self) -> float:
        return self.now

    def settle_and_claim(self, results: Sequence[int], want: int, untried: Sequence[int]) -> Batch[int]:
        self.transactions += 1
        for unit in results:
            self.claimed.remove(unit)
            self.done.append(unit)
        for unit in untried:
            self.claimed.remove(unit)
            self.waiting.append(unit)
        self.waiting.sort()
        units, self.waiting = self.waiting[:want], self.waiting[want:]
        self.claimed.update(units)
        if want:
            self.batches.append(len(units))
        return Batch(units, more=bool(units) if want else bool(self.waiting))

    def perform(self, unit: int) -> int:
        self.performed.append(unit)
        self.begun_at.append(self.now)
        self.now += self._cost_s(unit)
        return unit

    def others_wait(self) -> bool:
        return self._others()

    def hop(self, quantum_s: float, batch: int = 1) -> Hop:
        return run_lane(
            self.settle_and_claim, self.perform, self.others_wait, quantum_s=quantum_s, batch=batch, clock=self.clock
        )


def test_a_quantum_of_zero_is_one_unit_a_hop() -> None:
    for cost_s in (0.0, 2.0):
        work = FakeWork(3, lambda _, cost_s=cost_s: cost_s)
        hops = []
        while not hops or hops[-1].more:
            hops.append(work.hop(0, batch=64))
        assert [hop.more for hop in hops] == [True, True, False]
        assert work.performed == [0, 1, 2]


def test_the_last_unit_ends_the_lane_without_one_more_hop() -> None:
    work = FakeWork(1, lambda _: 5.0)
    assert work.hop(1.0) == Hop(more=False, batch=1)
    assert (work.done, work.transactions) == ([0], 2)


def test_an_empty_scope_ends_at_once() -> None:
    work = FakeWork(0, lambda _: 1.0)
    assert not work.hop(1.0).more
    assert not work.hop(0).more
    assert work.performed == []


def test_cheap_units_are_claimed_in_growing_batches_until_they_fill_a_tenth_of_the_quantum() -> None:
    work = FakeWork(MANY, lambda _: 0.001)
    hop = work.hop(1.0)
    assert work.batches[:6] == [1, 2, 4, 8, 16, 32]
    assert max(work.batches) <= 100
    assert hop.more
    assert len(work.performed) / work.transactions > 30


def test_units_that_cost_nothing_are_claimed_at_most_so_many_at_once() -> None:
    work = FakeWork(2000, lambda _: 0.0)
    assert not work.hop(1.0).more
    assert max(work.batches) == MAX_BATCH
    assert sorted(work.done) == list(range(2000))


def test_dear_units_are_claimed_singly() -> None:
    work = FakeWork(MANY, lambda _: 0.3)
    assert work.hop(1.0).batch == 1
    assert set(work.batches) == {1}


def test_the_next_hop_starts_with_the_batch_size_of_the_last_one() -> None:
    work = FakeWork(MANY, lambda _: 0.001)
    size = work.hop(1.0).batch
    assert size > 10
    work.batches.clear()
    work.hop(1.0, batch=size)
    assert work.batches[0] == size


def test_a_batch_named_by_a_message_cannot_exceed_the_limit() -> None:
    work = FakeWork(MANY, lambda _: 0.01)
    work.hop(1.0, batch=10**9)
    assert work.batches[0] == MAX_BATCH


def test_batches_shrink_as_soon_as_units_become_dear() -> None:
    work = FakeWork(MANY, lambda unit: 0.0001 if unit < 600 else 0.04)
    work.hop(10.0)
    first_dear = next(i for i in range(len(work.batches)) if sum(work.batches[: i + 1]) > 600)
    # The estimate for the first batch after them mixes cheap and expensive units.
    assert max(work.batches[first_dear + 2 :]) <= 25


@pytest.mark.parametrize("quantum_s", [0.05, 1.0, 7.5])
@pytest.mark.parametrize("cost_s", [0.0007, 0.03, 0.5, 20.0])
def test_a_hop_lasts_about_the_quantum(quantum_s: float, cost_s: float) -> None:
    work = FakeWork(MANY, lambda _: cost_s)
    assert work.hop(quantum_s).more
    assert quantum_s <= work.now - 1000 < quantum_s + cost_s + 1e-6


def test_no_unit_starts_after_the_quantum_and_claims_beside_a_slow_unit_are_released() -> None:
    work = FakeWork(MANY, lambda unit: 0.0005 if unit < 500 else 30.0)
    hop = work.hop(1.0)
    assert max(work.batches) > 100
    assert max(work.begun_at) < 1001.0
    assert hop.more
    assert work.claimed == set()
    assert sorted(work.done + work.waiting) == list(range(MANY))


def test_it_yields_to_others_that_wait_but_not_before_the_change_is_worth_it() -> None:
    work = FakeWork(MANY, lambda _: 0.01, others=lambda: True)
    assert work.hop(1.0).more
    assert MIN_SLICE_S <= work.now - 1000 < MIN_SLICE_S + 0.1
    assert work.claimed == set()


def test_a_hop_yields_when_other_messages_arrive() -> None:
    work: FakeWork = FakeWork(MANY, lambda _: 0.01, others=lambda: work.now >= 1000.5)
    assert work.hop(10.0).more
    assert 0.5 <= work.now - 1000 < 2.0


costs = st.one_of(st.just(0.0), st.floats(min_value=0, max_value=100), st.sampled_from([1e-6, 0.001, 0.01, 0.1, 1.0]))


@settings(deadline=None)
@given(
    st.lists(costs, max_size=300),
    st.sampled_from([0.0, 0.001, 0.1, 1.0, 60.0]),
    st.integers(1, 300),
    st.lists(st.booleans(), min_size=1),
)
def test_every_unit_is_performed_exactly_once_at_any_costs(
    unit_costs: list[float], quantum_s: float, batch: int, interruptions: list[bool]
) -> None:
    answers = iter(interruptions * 1000)
    work = FakeWork(len(unit_costs), lambda unit: unit_costs[unit], others=lambda: next(answers, False))
    hop = Hop(more=True, batch=batch)
    hops = 0
    while hop.more:
        hop = work.hop(quantum_s, hop.batch)
        hops += 1
        assert work.claimed == set()
        assert 1 <= hop.batch <= max(MAX_BATCH, batch)
    assert sorted(work.performed) == list(range(len(unit_costs)))
    assert work.done == work.performed
    assert hops <= max(1, len(unit_costs))
