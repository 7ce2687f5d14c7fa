"""The schema of the model's answers about songs, by docs/sources/music.md#steps."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from pipeline.providers.replies import as_json, as_model, clean, only_list_in, valid

MAX_TAG = 120


def _text(value: object) -> object:
    return "" if value is None else clean(value) if isinstance(value, str) else value


def _id(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _list(value: object) -> object:
    return [] if value is None else value


def _words(values: list[str]) -> list[str]:
    """Drop empty and repeated words; keep the order."""
    return list(dict.fromkeys(value[:MAX_TAG] for value in values if value))


Text = Annotated[str, BeforeValidator(_text)]
Words = Annotated[list[Text], BeforeValidator(_list), AfterValidator(_words)]


class VectorAnchor(BaseModel):
    """The song's sound and the images that it evokes."""

    model_config = ConfigDict(extra="ignore")

    acoustic_model: Text = ""
    semantic_push: Text = ""


class EmbeddingTags(BaseModel):
    """Tags; `energy` goes from 0 (still) to 10 (wild)."""

    model_config = ConfigDict(extra="ignore")

    mood_coord: Words = Field(default_factory=list)
    objects: Words = Field(default_factory=list)
    scene_tag: Text = ""
    spectrum: Text = ""
    energy: float | None = Field(default=None, ge=0, le=10, allow_inf_nan=False)


class Analysis(BaseModel):
    """The model's answer about one song."""

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str, BeforeValidator(_id)] = Field(min_length=1)
    vector_anchor: VectorAnchor
    embedding_tags: EmbeddingTags
    is_instrumental: bool | None = None


class _Reply(BaseModel):
    songs: list[Analysis]


def _strict(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_WORDS: dict[str, object] = {"type": "array", "items": {"type": "string"}}
_STRING: dict[str, object] = {"type": "string"}
REPLY_SCHEMA: dict[str, object] = _strict(
    {
        "songs": {
            "type": "array",
            "items": _strict(
                {
                    "id": _STRING,
                    "vector_anchor": _strict({"acoustic_model": _STRING, "semantic_push": _STRING}),
                    "embedding_tags": _strict(
                        {
                            "mood_coord": _WORDS,
                            "objects": _WORDS,
                            "scene_tag": _STRING,
                            "spectrum": _STRING,
                            "energy": {"type": "number"},
                        }
                    ),
                    "is_instrumental": {"type": "boolean"},
                }
            ),
        },
    }
)
"""The schema for services that enforce one: all properties are required, and others are refused."""


def read_reply(text: str) -> list[Analysis]:
    """Parse a reply: `{"songs": […]}`, or the list alone, bare or in a code fence. Raises `BadReply`."""
    data = as_json(text, max_chars=None)
    return as_model(_Reply, {"songs": data} if isinstance(data, list) else data).songs


def usable(text: str) -> list[Analysis]:
    """Return the valid answers in a broken reply; in a truncated reply, those before its end."""
    return list(valid(Analysis, only_list_in(text, "songs")))


def dump(analyses: dict[int, Analysis]) -> str:
    """Serialise answers by our song id, as a batch stores them."""
    return json.dumps({str(key): analysis.model_dump() for key, analysis in analyses.items()}, ensure_ascii=False)


def load(stored: str | None) -> dict[int, Analysis]:
    """Parse the output of `dump`; empty for None."""
    data: dict[str, Any] = json.loads(stored) if stored else {}
    return {int(key): Analysis.model_validate(value) for key, value in data.items()}


def matched(analyses: Iterable[Analysis], requested: dict[str, int]) -> tuple[dict[int, Analysis], int]:
    """Return (answers by our song id, number of ignored answers); ignores unknown and repeated ids.

    `requested`: our id for each id in the prompt.
    """
    by_id: dict[int, Analysis] = {}
    ignored = 0
    for analysis in analyses:
        song_id = requested.get(analysis.id)
        if song_id is None or song_id in by_id:
            ignored += 1
        else:
            by_id[song_id] = analysis
    return by_id, ignored
