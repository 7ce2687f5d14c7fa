"""Derives a song's columns from the model's answer: description, tags, mood, and the text to embed.

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
    """Return the columns of a song's row that the model's answer sets."""
    anchor, tags = analysis.vector_anchor, analysis.embedding_tags
    return {
        "description": f"{anchor.acoustic_model}\n\n[Imagery] {anchor.semantic_push}",
        "tags": json.dumps(_tags(analysis), ensure_ascii=False),
        "mood": tags.mood_coord[0] if tags.mood_coord else UNKNOWN_MOOD,
        "is_instrumental": analysis.is_instrumental,
        "energy_level": tags.energy,
        "analysis_json": analysis.model_dump_json(),
        "vector_text": vector_text(analysis, song),
    }


def _tags(analysis: Analysis) -> list[str]:
    """Return moods, objects, the scene and the spectrum as tags."""
    tags = analysis.embedding_tags
    scene = [tags.scene_tag] if tags.scene_tag else []
    return [*tags.mood_coord, *tags.objects, *scene, *([f"#Spectrum:{tags.spectrum}"] if tags.spectrum else [])]


def vector_text(analysis: Analysis, song: SongFacts) -> str:
    """Return the text to embed; empty if the answer contains nothing to search for."""
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
    """Return (song ids, texts) of songs with a text. The batch stores the ids with the vectors, to match them to songs.

    The design advances its index only for songs with a vector: after one gap every song gets another song's vector.
    """
    pairs = {song_id: text for song_id, text in texts.items() if text.strip()}
    return list(pairs), list(pairs.values())
