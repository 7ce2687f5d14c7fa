"""Songs for tests, and what a good model says about them."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.provider_server import Record

MOODS = ("Calm", "Wild", "Sad", "Bright")


def analysis(song: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A valid answer about one song of a prompt; it depends on the song alone."""
    mood = MOODS[sum(song["id"].encode()) % len(MOODS)]
    found = {
        "id": song["id"],
        "vector_anchor": {
            "acoustic_model": f"Sound of {song['title']}.",
            "semantic_push": f"Image of {song['title']}.",
        },
        "embedding_tags": {
            "mood_coord": [mood, "Deep"],
            "objects": ["#Genre:Ambient", "Rain"],
            "scene_tag": "Night drive",
            "spectrum": "Full",
            "energy": 4.5,
        },
        "is_instrumental": False,
    }
    return found | changes


def asked(record: Record) -> list[dict[str, Any]]:
    """The songs that a call asks about."""
    prompt = record.body["messages"][-1]["content"]
    songs, _ = json.JSONDecoder().raw_decode(prompt)
    assert isinstance(songs, list)
    return songs


def answer(record: Record, leave_out: Sequence[str] = ()) -> str:
    """A good reply about all songs but those with a title in `leave_out`."""
    return json.dumps({"songs": [analysis(song) for song in asked(record) if song["title"] not in leave_out]})
