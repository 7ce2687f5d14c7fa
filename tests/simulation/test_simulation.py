"""Some seeds of today's range: each day tries others. See docs/explanation/simulation.md."""

from collections.abc import Iterator

import pytest

from tests.simulation.gateway.session import Session as GatewaySession
from tests.simulation.seeds import first_seed, report
from tests.simulation.session import Session

SEEDS, GATEWAY_SEEDS = 25, 10
KEPT = {
    73994400270: "a worker dies with messages that it has read and not looked at: they come back",
    5500483: "messages that a fault puts before others make these count as lost",
    5502335: "messages that were reserved together are late together when their sender is held up",
    93001407: "the message of a call that is under way comes again before the call is sent: it is stamped when it is",
    93001995: "the only message of a queue is in the hands of a worker whose gate refuses it: it is not lost",
    81002294: "a call is under way to the provider when Redis is emptied: it counts when it is sent",
    95000009: "a worker is held up with the last message of its queue in its hands: it may count as lost",
    95204996: "a worker stalls with a message, which is sent again, and then goes on in its place",
    95204503: "a sweep is held up, and the next one follows soon: a process that has just begun is not dead",
    95101662: "a worker stalls with a message in its hands while its queue turns over: it may count as lost",
    27: "a failover loses the ends of the messages at work: their places are free",
    100451: "a failover loses the ends of the messages at work: their places are free",
}
"""Seeds that failed, with the defect of each."""
KEPT_OF_GATEWAYS = {
    91001477: "a copy of a reservation that arrives after its job is done is given back by upkeep",
    95000031: "a slot is reserved for a job that is done, by an instance that was held up: its home gives it back",
    95003583: "a job that is created anew after Redis was emptied may go to another node in its first attempt",
    91004096: "a job that is created anew after Redis was emptied, while it is released, stays listed",
}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as opened:
        yield opened


def test_seeds_that_once_failed_hold_and_repeat_exactly(session: Session) -> None:
    first, *others = KEPT
    runs = []
    for seed in (first, *others, first):
        world = session.run(seed)
        assert world.failure is None, report(world)
        if seed == first:
            runs.append((world.steps, list(world.trace)))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.rotating) for part in (1, 2, 3))])
def test_todays_seeds_hold(session: Session, part: int) -> None:
    first = first_seed() + part * SEEDS
    for seed in range(first, first + SEEDS):
        world = session.run(seed)
        assert world.failure is None, report(world)


def test_seeds_hold_for_gateways() -> None:
    first = first_seed()
    with GatewaySession() as gateways:
        for seed in (*KEPT_OF_GATEWAYS, *range(first, first + GATEWAY_SEEDS)):
            world = gateways.run(seed)
            assert world.failure is None, report(world, "make simulate ARGS='--only gateway'")
