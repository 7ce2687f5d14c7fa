"""The music flow for fault tests."""

from collections import Counter

from pipeline.engine import live_settings
from pipeline.engine.transaction import Tx
from pipeline.process import get_context
from pipeline.providers import gates
from tasks import music
from tests.support import songs
from tests.support.music import CHAT, add_songs
from tests.support.provider_server import ProviderServer

QUEUES = ("metadata-generation", "metadata-only", "embedding-only")


def change(**settings: str) -> None:
    """Set live settings."""
    known = get_context().gates.live_settings

    def work(session: Tx) -> None:
        for key, value in settings.items():
            live_settings.change(session, known, key, value)

    get_context().db.run(work)
    gates.sync(get_context())


def limits(value: str) -> None:
    """Set this limit on every queue of the flow."""
    change(**{f"queue.{name}.limits": value for name in QUEUES})


def add_songs_here(count: int = 30) -> None:
    add_songs(get_context(), count)


def ended() -> bool:
    run = music.status().run
    return run is not None and run.outcome is not None


def describe() -> object:
    return music.status().contract()


def count(provider: ProviderServer, path: str) -> int:
    return sum(record.path == path for record in provider.records)


def answered_calls(*providers: ProviderServer) -> Counter[str]:
    """Count each song's answered metadata calls."""
    answered = (r for p in providers for r in p.records if r.path == CHAT and r.status == 200)
    return Counter(song["id"] for record in answered for song in songs.in_prompt(record))
