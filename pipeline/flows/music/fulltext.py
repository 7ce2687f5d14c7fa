"""The full text of songs: names and albums from the sync, tags and descriptions from the analysis."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline.engine.tables import portions
from pipeline.flows.music.models import SONGS
from pipeline.storage.fulltext import FullText, Text, looser

FULL_TEXT = FullText("music_fts", items="music_songs", time="updated_at")


def index(session: Session, song_ids: Sequence[int]) -> None:
    """Index the current rows of songs, in the caller's transaction."""
    names = ("id", "title", "artist", "album", "genre", "year", "tags", "mood", "description")
    for portion in portions(song_ids):
        rows = session.execute(select(*(SONGS.c[name] for name in names)).where(SONGS.c.id.in_(portion)))
        FULL_TEXT.put(session, [_text(row) for row in rows])


def _text(row: Any) -> Text:
    about = " \n".join([row.album, row.genre, str(row.year or "")])
    analysis = " \n".join([row.mood, *json.loads(row.tags), row.description])
    return Text(row.id, f"{row.title} \n{row.artist}", about, analysis)


def search(session: Session, words: str, limit: int) -> tuple[list[int], bool]:
    """Return (ids of the songs with all words, best first; False). If no song has all, return (ids of songs with some
    of them; True); without any match, ([]; False)."""
    if ids := FULL_TEXT.search(session, words, limit):
        return ids, False
    for fewer_words in looser(words):
        ids += FULL_TEXT.search(session, fewer_words, limit, any_word=True)
    return list(dict.fromkeys(ids))[:limit], bool(ids)
