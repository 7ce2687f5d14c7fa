"""Connections of a gateway that are cut, hang or are slow."""

import pytest

from tests.faults.nodes.fleet import Fleet
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
CUTS = 5
NOTICED_S = 30


def test_cut_hanging_and_trickling_connections_lose_no_request(fleet: Fleet) -> None:
    fleet.start("a")
    with TcpProxy(fleet.ports["a"]) as proxy:
        fleet.node("n1", proxy.url)
        with fleet.load(proxy.url) as load:
            load.go_on(10)
            for _ in range(CUTS):
                assert proxy.cut()
                load.go_on(10)
            with proxy.hanging():
                wait_until(lambda: "n1" not in fleet.nodes(), NOTICED_S, "the node counts as disconnected")
            load.go_on(10)
            with proxy.trickling(200):
                load.go_on(10)
            load.go_on(10)
        assert proxy.cuts >= 2 * CUTS, "connections of the node and of sessions"
    fleet.assert_exactly_once(load)
