"""What the model must answer about songs: the shape of docs/sources/music.md#steps."""

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
    """In their order, without empty and repeated ones."""
    return list(dict.fromkeys(value[:MAX_TAG] for value in values if value))


Text = Annotated[str, BeforeValidator(_text)]
Words = Annotated[list[Text], BeforeValidator(_list), AfterValidator(_words)]


class VectorAnchor(BaseModel):
    """What the song sounds like and what it calls up."""

    model_config = ConfigDict(extra="ignore")

    acoustic_model: Text = ""
    semantic_push: Text = ""


class EmbeddingTags(BaseModel):
    """Tags; `energy` is from 0 (still) to 10."""

    model_config = ConfigDict(extra="ignore")

    mood_coord: Words = Field(default_factory=list)
    objects: Words = Field(default_factory=list)
    scene_tag: Text = ""
    spectrum: Text = ""
    energy: float | None = Field(default=None, ge=0, le=10, allow_inf_nan=False)


class Analysis(BaseModel):
    """What the model found out about one song."""

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
"""For services that enforce a schema: all properties required, none additional."""


def read_reply(text: str) -> list[Analysis]:
    """The answers in a reply: `{"songs": […]}`, or the list alone, bare or in a code fence. Raises `BadReply`."""
    data = as_json(text, max_chars=None)
    return as_model(_Reply, {"songs": data} if isinstance(data, list) else data).songs


def usable(text: str) -> list[Analysis]:
    """The valid answers in a reply, whatever is wrong with the rest; of a cut-off reply, those before the cut."""
    return list(valid(Analysis, only_list_in(text, "songs")))


def dump(analyses: dict[int, Analysis]) -> str:
    """Answers by our song id, as a batch stores them."""
    return json.dumps({str(key): analysis.model_dump() for key, analysis in analyses.items()}, ensure_ascii=False)


def load(stored: str | None) -> dict[int, Analysis]:
    """What `dump` stored; empty for nothing."""
    data: dict[str, Any] = json.loads(stored) if stored else {}
    return {int(key): Analysis.model_validate(value) for key, value in data.items()}


def matched(analyses: Iterable[Analysis], asked: dict[str, int]) -> tuple[dict[int, Analysis], int]:
    """(answers by our song id, how many were ignored): ids that nobody asked for or that came twice are ignored.

    `asked`: our id for each id in the prompt.
    """
    found: dict[int, Analysis] = {}
    ignored = 0
    for analysis in analyses:
        song_id = asked.get(analysis.id)
        if song_id is None or song_id in found:
            ignored += 1
        else:
            found[song_id] = analysis
    return found, ignored
