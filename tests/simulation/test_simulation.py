"""Some seeds of today's range: each day tries others. See docs/simulation.md."""

from collections.abc import Iterator

import pytest

from tests.simulation.gateway.session import Session as GatewaySession
from tests.simulation.seeds import first_seed, report
from tests.simulation.session import Session

SEEDS, PARTS, GATEWAY_SEEDS = 60, 2, 40


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as made:
        yield made


@pytest.mark.parametrize("part", range(PARTS))
def test_todays_seeds_hold(session: Session, part: int) -> None:
    first = first_seed() + part * SEEDS
    for seed in range(first, first + SEEDS):
        world = session.run(seed)
        assert world.failure is None, report(world)


def test_todays_seeds_hold_for_gateways() -> None:
    first = first_seed()
    with GatewaySession() as gateways:
        for seed in range(first, first + GATEWAY_SEEDS):
            world = gateways.run(seed)
            assert world.failure is None, report(world, "make simulate ARGS='--only gateway'")
