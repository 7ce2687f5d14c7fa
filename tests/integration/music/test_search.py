"""A search finds songs by words: names and albums after the sync, tags and moods after the analysis."""

import json

import pytest

from pipeline.engine.errors import UserError
from pipeline.flows.music import search
from pipeline.flows.music.library import songs as library
from pipeline.flows.music.library.songs import SongTags
from pipeline.flows.music.service import StartOptions, check
from pipeline.storage.context import Context
from tests.support import songs
from tests.support.music import CHAT, Driver, add_songs, calls
from tests.support.provider_server import ProviderServer, Record

pytestmark = pytest.mark.both_databases

TAGS = [
    SongTags("a", "So What", "Miles Davis", "Kind of Blue", "Jazz", 1959, path="a.flac"),
    SongTags("b", "Blue in Green", "Miles Davis", "Kind of Blue", "Jazz", 1959, path="b.flac"),
    SongTags("c", "夜的第七章", "周杰伦", "依然范特西", "Pop", 2006, path="c.flac"),
]


def _store(context: Context, *tags: SongTags) -> None:
    now = context.db.now()
    context.db.run(lambda session: library.store(session, library.FOLDER, tags, now))


def _titles(context: Context, words: str) -> list[str]:
    return [match.song.title for match in search.for_words(context, words).matches]


class TestWithoutProvider:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {}

    def test_songs_that_were_only_synced_are_found_by_names_albums_genres_and_years(self, context: Context) -> None:
        _store(context, *TAGS)
        assert _titles(context, "davis what") == ["So What"]
        assert _titles(context, "Kind of Blue") == ["Blue in Green", "So What"], "a word in the title weighs more"
        assert _titles(context, "jazz 1959 green") == ["Blue in Green"]
        assert _titles(context, "周杰伦 第七章") == ["夜的第七章"]
        assert _titles(context, "green submarine") == ["Blue in Green"], "songs with some of the words, if none has all"
        assert search.for_words(context, "green submarine").any_word, "the result notes it"
        assert not search.for_words(context, "davis what").any_word
        result = search.for_words(context, "nothing of the kind at all")
        assert (result.searched, result.songs, result.lexical) == (0, 3, True)

    def test_accents_are_not_needed_and_do_no_harm(self, context: Context) -> None:
        _store(
            context,
            SongTags("d", "Jóga", "Björk", "Homogenic", "Electronic"),
            SongTags("e", "Ænima", "TOOL"),
            SongTags("f", "がらくた", "Łona"),
            SongTags("g", "からくた", "Lona"),
        )
        assert _titles(context, "joga bjork") == _titles(context, "JÓGA Bjo\u0308rk") == ["Jóga"]
        assert _titles(context, "ænima") == _titles(context, "aenima") == ["Ænima"]
        assert _titles(context, "がらくた") == ["がらくた"], "a voiced kana is not an accent"
        assert sorted(_titles(context, "lona")) == ["からくた", "がらくた"]

    def test_songs_indexed_with_accents_are_still_found(
        self, context: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as earlier:
            earlier.setattr("pipeline.storage.fulltext.plain", str)
            _store(context, SongTags("d", "Jóga", "Björk", "Homogenic", "Electronic"))
        assert _titles(context, "Björk Jóg") == ["Jóga"]

    def test_changed_tags_are_searched_and_missing_songs_are_not_found(self, context: Context) -> None:
        _store(context, *TAGS)
        _store(context, SongTags("a", "Freddie Freeloader", "Miles Davis", path="a.flac"))
        assert _titles(context, "freeloader") == ["Freddie Freeloader"]
        assert _titles(context, "what") == []
        now = context.db.now()
        context.db.run(lambda session: library.flag_missing(session, library.FOLDER, now))
        assert _titles(context, "davis") == []

    def test_a_song_that_returns_under_another_id_is_found_once(self, context: Context) -> None:
        _store(context, *TAGS)
        started = context.db.now()
        new = SongTags("z", "So What (Remastered)", "Miles Davis", path="a.flac")
        context.db.run(lambda session: library.store(session, library.FOLDER, [new], started))
        with context.db.read() as session:
            (ids,) = library.windows(session, library.FOLDER, started)  # a database of several tests counts on
        context.db.run(lambda session: library.relink(session, library.FOLDER, started, "path", ids, paid=False))
        assert _titles(context, "what") == ["So What (Remastered)"]
        assert _titles(context, "remastered") == ["So What (Remastered)"]

    def test_start_without_a_provider_names_alternatives_and_the_settings(self, context: Context) -> None:
        with pytest.raises(UserError) as refused:
            check(context.settings, StartOptions())
        for part in ("penstock music search", "penstock music sync", "PENSTOCK_MUSIC__PROVIDER", "ollama"):
            assert part in str(refused.value)


def test_tags_and_descriptions_are_found_beside_moods(driver: Driver, provider: ProviderServer) -> None:
    def answer(record: Record) -> str:
        tags = {"mood_coord": ["Melancholic"], "objects": ["Lighthouse"]}
        requested = songs.in_prompt(record)
        analyses = [
            songs.analysis(song, **({"embedding_tags": tags} if song["title"] == "Song 2" else {}))
            for song in requested
        ]
        return json.dumps({"songs": analyses})

    provider.script.answer = answer
    add_songs(driver.context, 3)
    driver.run(driver.start())
    assert calls(provider, CHAT) == 1
    first, *others = search.for_words(driver.context, "lighthouse melancholic").matches
    assert first.song.title == "Song 2"
    assert first.score is not None
    assert len(others) == 2, "the other songs follow by mood"
