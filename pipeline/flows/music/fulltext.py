"""Songs in full text: found by their names and albums as soon as they are synced, by tags and descriptions later."""

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
    """Index songs as their rows are now, in the caller's transaction."""
    names = ("id", "title", "artist", "album", "genre", "year", "tags", "mood", "description")
    for some in portions(song_ids):
        rows = session.execute(select(*(SONGS.c[name] for name in names)).where(SONGS.c.id.in_(some)))
        FULL_TEXT.put(session, [_text(row) for row in rows])


def _text(row: Any) -> Text:
    about = " \n".join([row.album, row.genre, str(row.year or "")])
    found = " \n".join([row.mood, *json.loads(row.tags), row.description])
    return Text(row.id, f"{row.title} \n{row.artist}", about, found)


def search(session: Session, words: str, limit: int) -> tuple[list[int], bool]:
    """Songs with all the words, best first; where there are none, those with some of them, and True."""
    if found := FULL_TEXT.search(session, words, limit):
        return found, False
    for some in looser(words):
        found += FULL_TEXT.search(session, some, limit, any_word=True)
    return list(dict.fromkeys(found))[:limit], bool(found)
