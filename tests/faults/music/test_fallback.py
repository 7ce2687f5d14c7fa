"""A fallback provider, on real workers."""

import pytest

from pipeline.process import get_context
from pipeline.providers import gates
from tasks import music
from tests.faults.flow import SQLITE, settings
from tests.faults.music.flow import add_songs_here, count, describe, ended, limits
from tests.support.music import CHAT, EMBED
from tests.support.provider_server import ProviderServer
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, SQLITE, settings(PROVIDERS__AI__FALLBACK="other")]


@pytest.mark.rotating
def test_fallback_writes_while_the_breaker_is_open(
    stack: Stack, provider: ProviderServer, other: ProviderServer
) -> None:
    limits("1000/s")
    add_songs_here(30)
    breaker = gates.breaker(get_context(), "ai:text")
    breaker.open(600, "by hand")
    gates.remember_breaker(get_context(), "ai:text", breaker.inspect())
    stack.start("music-1", "beat-1")
    music.start(skip_sync=True)
    wait_until(ended, 90, "the run has ended", last=describe)
    assert music.status().songs == {"COMPLETED": 30}
    assert (count(provider, CHAT), count(provider, EMBED)) == (0, 3)
    assert (count(other, CHAT), count(other, EMBED)) == (3, 0)
