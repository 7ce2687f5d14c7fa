import pytest

from pipeline.nodes.link import BackOff, endpoints
from pipeline.nodes.protocol import SESSION_PATH


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        ("ws://127.0.0.1:8485", ["ws://127.0.0.1:8485/ws/session"]),
        (" wss://a/ , ws://b:1/x/,", ["wss://a/ws/session", "ws://b:1/x/ws/session"]),
        (["ws://a/ws/session"], ["ws://a/ws/session"]),
        ("ws://[::1]:8485", ["ws://[::1]:8485/ws/session"]),
    ],
)
def test_addresses_get_the_path_of_the_protocol(urls: str, found: list[str]) -> None:
    assert list(endpoints(urls, SESSION_PATH)) == found


@pytest.mark.parametrize(
    "urls", ["", " , ", "http://a", "a:8485", "ws://", "ws://a?b", "ws://user:word@a", "ws://a:port", "ws://a#b"]
)
def test_what_is_no_address_is_refused(urls: str) -> None:
    with pytest.raises(ValueError, match="gateway"):
        endpoints(urls, SESSION_PATH)


def test_waits_grow_up_to_the_longest_and_begin_anew() -> None:
    back_off = BackOff(1, 8)
    assert all(0 <= back_off.next_s() <= most for most in (1, 2, 4, 8, 8, 8))
    back_off.failures = 10**6
    assert back_off.next_s() <= 8
    back_off.reset()
    assert back_off.next_s() <= 1
