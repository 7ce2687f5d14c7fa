"""Songs for tests, and a good model's replies about them."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.provider_server import Record

MOODS = ("Calm", "Wild", "Sad", "Bright")


def analysis(song: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a valid answer about one song of a prompt. It depends on the song alone."""
    mood = MOODS[sum(song["id"].encode()) % len(MOODS)]
    reply = {
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
    return reply | changes


def in_prompt(record: Record) -> list[dict[str, Any]]:
    """Return the songs in a call's prompt."""
    prompt = record.body["messages"][-1]["content"]
    songs, _ = json.JSONDecoder().raw_decode(prompt)
    assert isinstance(songs, list)
    return songs


def answer(record: Record, leave_out: Sequence[str] = ()) -> str:
    """Return a good reply about all songs except those with a title in `leave_out`."""
    return json.dumps({"songs": [analysis(song) for song in in_prompt(record) if song["title"] not in leave_out]})
