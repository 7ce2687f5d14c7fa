"""What a song gets from the model's answer: description, tags, mood, and the text to embed.

Rules: docs/sources/music.md#steps.
"""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.flows.music.rules.prompts import SongFacts
from pipeline.flows.music.rules.schemas import Analysis

UNKNOWN_MOOD = "Unknown"
_GENRE = "#genre:"


def song_columns(analysis: Analysis, song: SongFacts) -> dict[str, Any]:
    """Column values of the song's row."""
    anchor, found = analysis.vector_anchor, analysis.embedding_tags
    return {
        "description": f"{anchor.acoustic_model}\n\n[Imagery] {anchor.semantic_push}",
        "tags": json.dumps(_tags(analysis), ensure_ascii=False),
        "mood": found.mood_coord[0] if found.mood_coord else UNKNOWN_MOOD,
        "is_instrumental": analysis.is_instrumental,
        "energy_level": found.energy,
        "analysis_json": analysis.model_dump_json(),
        "vector_text": vector_text(analysis, song),
    }


def _tags(analysis: Analysis) -> list[str]:
    """Moods, objects, the scene, the spectrum."""
    found = analysis.embedding_tags
    scene = [found.scene_tag] if found.scene_tag else []
    return [*found.mood_coord, *found.objects, *scene, *([f"#Spectrum:{found.spectrum}"] if found.spectrum else [])]


def vector_text(analysis: Analysis, song: SongFacts) -> str:
    """The text to embed; empty if the answer says nothing by which the song could be found."""
    anchor, tags = analysis.vector_anchor, _tags(analysis)
    if not (anchor.acoustic_model or anchor.semantic_push or tags):
        return ""
    genres = (tag[len(_GENRE) :].strip() for tag in analysis.embedding_tags.objects if tag.lower().startswith(_GENRE))
    lines = {
        "Title": song.title,
        "Artist": song.artist,
        "Genre": next(genres, "") or song.genre,
        "Sound": anchor.acoustic_model,
        "Imagery": anchor.semantic_push,
        "Tags": ", ".join(tags),
    }
    return "\n".join(f"{name}: {value}" for name, value in lines.items() if value)


def to_embed(texts: Mapping[int, str]) -> tuple[list[int], list[str]]:
    """(song ids, texts) of the songs that have a text. The ids are stored with the vectors, to say whose is whose.

    The design counts its index up only where a vector came, so that after one gap every song has another's vector.
    """
    pairs = {song_id: text for song_id, text in texts.items() if text.strip()}
    return list(pairs), list(pairs.values())
