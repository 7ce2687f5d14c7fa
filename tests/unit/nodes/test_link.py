import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from websockets.asyncio.server import ServerConnection, serve

from pipeline.nodes.client.link import BackOff, LinkFailed, LinkLimits, endpoints, open_link
from pipeline.nodes.protocol import SESSION_PATH, to_node


@pytest.mark.parametrize(
    ("urls", "addresses"),
    [
        ("ws://127.0.0.1:8485", ["ws://127.0.0.1:8485/ws/session"]),
        (" wss://a/ , ws://b:1/x/,", ["wss://a/ws/session", "ws://b:1/x/ws/session"]),
        (["ws://a/ws/session"], ["ws://a/ws/session"]),
        ("ws://[::1]:8485", ["ws://[::1]:8485/ws/session"]),
    ],
)
def test_addresses_get_the_path_of_the_protocol(urls: str, addresses: list[str]) -> None:
    assert list(endpoints(urls, SESSION_PATH)) == addresses


@pytest.mark.parametrize(
    "urls", ["", " , ", "http://a", "a:8485", "ws://", "ws://a?b", "ws://user:word@a", "ws://a:port", "ws://a#b"]
)
def test_invalid_addresses_are_refused(urls: str) -> None:
    with pytest.raises(ValueError, match="gateway"):
        endpoints(urls, SESSION_PATH)


def test_waits_grow_up_to_the_longest_and_begin_anew() -> None:
    back_off = BackOff(1, 8)
    assert all(0 <= back_off.next_s() <= most for most in (1, 2, 4, 8, 8, 8))
    back_off.failures = 10**6
    assert back_off.next_s() <= 8
    back_off.reset()
    assert back_off.next_s() <= 1


def received(fragments: Callable[[], AsyncIterator[str]]) -> object:
    """Return the message that a client reads from these fragments."""

    async def send(connection: ServerConnection) -> None:
        await connection.send(fragments())

    async def receive() -> object:
        limits = LinkLimits(parts_s=0.3)
        async with (
            serve(send, "127.0.0.1", 0) as server,
            open_link(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", "t", to_node, limits) as link,
        ):
            message, _ = await link.receive()
            return message

    return asyncio.run(receive())


def test_a_message_in_fragments_arrives_whole() -> None:
    async def fragments() -> AsyncIterator[str]:
        for part in ('{"type": "drain",', ' "reason": "', 'gr\u00fcn"', "}"):
            yield part

    assert getattr(received(fragments), "reason", "") == "gr\u00fcn"


def test_a_gateway_that_trickles_one_message_in_ever_new_fragments_is_left() -> None:
    async def fragments() -> AsyncIterator[str]:
        while True:
            yield " "
            await asyncio.sleep(0.02)

    with pytest.raises(LinkFailed, match="did not complete it"):
        received(fragments)
