"""What the model must answer about songs: the shape of source 002, section 2.E, and how a reply is read."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

MAX_ERRORS = 5
"""Problems of one reply that are told to the model, and kept."""
MAX_TAG = 120
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(.*?)\n?```\s*\Z", re.DOTALL)
_LIST = re.compile(r"\[\s*(?=\{)")
_NEXT = re.compile(r"\s*,?\s*")


class BadReply(ValueError):
    """A reply is no JSON of the shape; the message says what is wrong, for the model and for people."""


def clean(text: object) -> str:
    """Text as every database takes it: no NUL, no lone surrogates, no blanks at its ends."""
    return str(text).replace("\x00", "").encode("utf-8", "replace").decode().strip()


def _text(value: object) -> object:
    return "" if value is None else clean(value) if isinstance(value, str) else value


def _id(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _list(value: object) -> object:
    return [] if value is None else value


def _words(values: list[str]) -> list[str]:
    """Without empty ones and repetitions, in their order."""
    return list(dict.fromkeys(value[:MAX_TAG] for value in values if value))


Text = Annotated[str, BeforeValidator(_text)]
Words = Annotated[list[Text], BeforeValidator(_list)]


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

    def tidy(self) -> "Analysis":
        """The same without empty or repeated tags."""
        tags = self.embedding_tags
        words = {"mood_coord": _words(tags.mood_coord), "objects": _words(tags.objects)}
        return self.model_copy(update={"embedding_tags": tags.model_copy(update=words)})


class _Reply(BaseModel):
    songs: list[Analysis]


def _strict(properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_WORDS: dict[str, object] = {"type": "array", "items": {"type": "string"}}
_STRING: dict[str, object] = {"type": "string"}
REPLY_SCHEMA: dict[str, object] = _strict({
    "songs": {
        "type": "array",
        "items": _strict({
            "id": _STRING,
            "vector_anchor": _strict({"acoustic_model": _STRING, "semantic_push": _STRING}),
            "embedding_tags": _strict({
                "mood_coord": _WORDS, "objects": _WORDS, "scene_tag": _STRING, "spectrum": _STRING,
                "energy": {"type": "number"},
            }),
            "is_instrumental": {"type": "boolean"},
        }),
    },
})  # fmt: skip
"""For services that hold a model to a schema: all properties required, none additional."""


def read_reply(text: str) -> list[Analysis]:
    """The answers in a reply: `{"songs": […]}`, or the list alone, bare or in a code fence. Raises `BadReply`."""
    fenced = _FENCE.match(text)
    try:
        data = json.loads(fenced[1] if fenced else text)
    except RecursionError:
        raise BadReply("the reply is nested too deeply") from None
    except ValueError as error:
        raise BadReply(f"the reply is no JSON: {error}") from None
    try:
        found = _Reply.model_validate({"songs": data} if isinstance(data, list) else data)
    except ValidationError as error:
        raise BadReply(_problems(error)) from None
    return [analysis.tidy() for analysis in found.songs]


def usable(text: str) -> list[Analysis]:
    """Those answers in a reply that are valid, whatever is wrong with the rest: also the ones before a cut."""
    found = []
    for item in _items(text):
        try:
            found.append(Analysis.model_validate(item).tidy())
        except ValidationError:
            continue
    return found


def _items(text: str) -> Iterator[object]:
    """What a reply's list has, up to where the reply is no JSON any more."""
    fenced = _FENCE.match(text)
    try:
        data = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        yield from _whole_objects(text)
        return
    found = data.get("songs") if isinstance(data, dict) else data
    yield from found if isinstance(found, list) else []


def _whole_objects(text: str) -> Iterator[object]:
    begin = _LIST.search(text)
    position = begin.end() if begin else len(text)
    decoder = json.JSONDecoder()
    while position < len(text):
        try:
            item, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield item
        if (after := _NEXT.match(text, position)) is not None:
            position = after.end()


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{'.'.join(map(str, item['loc'])) or 'the reply'}: {item['msg']}" for item in found[:MAX_ERRORS]]
    more = f"; and {len(found) - MAX_ERRORS} more" if len(found) > MAX_ERRORS else ""
    return "; ".join(lines) + more


def dump(analyses: dict[int, Analysis]) -> str:
    """Answers by our song id, as they are stored on a batch."""
    return json.dumps({str(key): analysis.model_dump() for key, analysis in analyses.items()}, ensure_ascii=False)


def load(stored: str | None) -> dict[int, Analysis]:
    """What `dump` stored; empty for nothing."""
    data: dict[str, Any] = json.loads(stored) if stored else {}
    return {int(key): Analysis.model_validate(value) for key, value in data.items()}


def matched(analyses: Iterable[Analysis], asked: dict[str, int]) -> tuple[dict[int, Analysis], int]:
    """(answers by our song id, how many were ignored): ids that were not asked for, and those that came twice.

    `asked`: the ids in the prompt, with ours.
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
