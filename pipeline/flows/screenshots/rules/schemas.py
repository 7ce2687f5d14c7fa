"""The schemas of models' replies. Rules: docs/sources/screenshots.md#vision."""

import math
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pipeline.flows.screenshots.states import DERIVED, NodeKind
from pipeline.providers.replies import clean

MAX_TITLE = 200
MAX_SUMMARY = 2000
MAX_NAME = 120
MAX_OCR = 20_000
MAX_KEYWORDS = 10
"""Rule: docs/sources/screenshots.md#merges."""
MAX_SNIPPETS = 50
DEFAULT_SCORE = 5
"""The score without the model's importance or confidence: the middle of 0–10."""


def clipped(text: str, limit: int) -> str:
    """Cut `text` to `limit` characters; a cut text ends in an ellipsis, which counts."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _text(value: object) -> object:
    return "" if value is None else clean(value) if isinstance(value, str) else value


def _words(value: object) -> object:
    """Clean names and drop repeats. Drop values that are not text: one bad word must not invalidate a segment."""
    if not isinstance(value, list):
        return [] if value is None else value
    return unique(clipped(clean(item), MAX_NAME) for item in value if isinstance(item, str))


def _number(value: object) -> object:
    """Refuse booleans, which pydantic would accept as 0 and 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004  # pydantic reports ValueErrors, and raises others
    return value


def _ids(value: object) -> object:
    if not isinstance(value, list):
        return [] if value is None else value
    return [_number(item) for item in value]


def _score(value: object) -> object:
    if value is None:
        return DEFAULT_SCORE
    if isinstance(value, str):
        value = float(value) if value.strip().replace(".", "", 1).isdecimal() else value
    # Not `isfinite`: it fails for whole numbers that a float cannot hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise ValueError("must be a number from 0 to 10")
    return max(0, min(10, round(value)))


def _at_most(limit: int) -> BeforeValidator:
    return BeforeValidator(lambda value: clipped(clean(value), limit) if isinstance(value, str) else value)


def unique(words: Iterable[str]) -> list[str]:
    """Return the words without empty ones and repeats (in any case), in their order; the first spelling stays."""
    by_key: dict[str, str] = {}
    for word in words:
        if word:
            by_key.setdefault(word.casefold(), word)
    return list(by_key.values())


def entity_key(name: str) -> str:
    """Return the key of an entity's row, which is equal for spellings that differ in case, blanks or the width of
    characters."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


Text = Annotated[str, BeforeValidator(_text)]
Title = Annotated[Text, Field(min_length=1), _at_most(MAX_TITLE)]
Summary = Annotated[Text, _at_most(MAX_SUMMARY)]
Words = Annotated[list[str], BeforeValidator(_words)]
Ids = Annotated[list[int], BeforeValidator(_ids)]
Id = Annotated[int, BeforeValidator(_number)]
Score = Annotated[int, BeforeValidator(_score)]
_NULL_AS_LIST = BeforeValidator(lambda value: [] if value is None else value)
_NULL_AS_OBJECT = BeforeValidator(lambda value: {} if value is None else value)
_UPPER = BeforeValidator(lambda value: value.strip().upper() if isinstance(value, str) else value)
_LOWER = BeforeValidator(lambda value: value.strip().lower() if isinstance(value, str) else value)


class Finding(_Shape):
    """Knowledge, a state, a procedure or a plan from a segment."""

    title: Title
    summary: Summary = ""


class Derived(_Shape):
    """Findings by kind."""

    knowledge: Annotated[list[Finding], _NULL_AS_LIST] = Field(default_factory=list)
    state: Annotated[list[Finding], _NULL_AS_LIST] = Field(default_factory=list)
    procedure: Annotated[list[Finding], _NULL_AS_LIST] = Field(default_factory=list)
    plan: Annotated[list[Finding], _NULL_AS_LIST] = Field(default_factory=list)

    def by_kind(self) -> list[tuple[NodeKind, Finding]]:
        """Return all findings with their kinds, in the order of `DERIVED`."""
        return [(kind, finding) for kind in DERIVED for finding in getattr(self, kind.value)]


class SegmentEvent(_Shape):
    """The event of a segment. Scores are clamped to 0–10."""

    title: Title
    summary: Summary = ""
    importance: Score = DEFAULT_SCORE
    confidence: Score = DEFAULT_SCORE


class MergeHint(_Shape):
    """Whether a segment continues a thread of the history."""

    decision: Annotated[Literal["NEW", "MERGE"], _UPPER] = "NEW"
    thread_id: Text = ""


class Segment(_Shape):
    """An event over one or more screenshots. `screen_ids`: positions in the batch, from 1."""

    segment_id: Text = ""
    screen_ids: Ids
    event: SegmentEvent
    derived: Annotated[Derived, _NULL_AS_OBJECT] = Field(default_factory=Derived)
    merge_hint: Annotated[MergeHint, _NULL_AS_OBJECT] = Field(default_factory=MergeHint)
    keywords: Words = Field(default_factory=list)


class AppGuess(_Shape):
    """The program that a screenshot shows; `confidence` from 0 to 1."""

    name: Summary = ""
    confidence: Annotated[float, BeforeValidator(_number), Field(ge=0, le=1, allow_inf_nan=False)] = 0.5


class SeenScreenshot(_Shape):
    """The text of one screenshot. `screenshot_id` is our id."""

    screenshot_id: Id
    ocr_text: Annotated[Text, _at_most(MAX_OCR)] = ""
    ui_text_snippets: Words = Field(default_factory=list)
    app_guess: AppGuess | None = None


class VlmIndex(_Shape):
    """The vision model's description of screenshots. Rule: docs/sources/screenshots.md#vision."""

    segments: list[Segment]
    entities: Words = Field(default_factory=list)
    screenshots: Annotated[list[SeenScreenshot], _NULL_AS_LIST] = Field(default_factory=list)


class EntityMention(_Shape):
    """A named person or thing, or its bare name. `confidence` from 0 to 10."""

    name: Annotated[Title, _at_most(MAX_NAME)]
    entity_type: Annotated[Text, _at_most(MAX_NAME)] = Field(default="", alias="entityType")
    confidence: Score = DEFAULT_SCORE


_BARE_NAME = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
Mentions = Annotated[list[Annotated[EntityMention, _BARE_NAME]], _NULL_AS_LIST]


class ExpandedNode(_Shape):
    """A node from the text model. Rule: docs/sources/screenshots.md#expansion. `event_time`: ms since 1970."""

    kind: Annotated[NodeKind, _LOWER]
    thread_id: Text = ""
    title: Title
    summary: Summary = ""
    keywords: Words = Field(default_factory=list)
    entities: Mentions = Field(default_factory=list)
    importance: Score = DEFAULT_SCORE
    confidence: Score = DEFAULT_SCORE
    screenshot_ids: Ids = Field(default_factory=list)
    event_time: Annotated[float | None, BeforeValidator(_number)] = None


class ExpandedEdge(_Shape):
    """An edge between two nodes of the reply, by their positions."""

    from_index: Id
    to_index: Id
    edge_type: Text = "derived_from"


class ExpandReply(_Shape):
    """Nodes and edges. Rule: docs/sources/screenshots.md#expansion."""

    nodes: list[ExpandedNode]
    edges: Annotated[list[ExpandedEdge], _NULL_AS_LIST] = Field(default_factory=list)


class MergeReply(_Shape):
    """The merged node. Rule: docs/sources/screenshots.md#merges."""

    title: Title
    summary: Summary = ""
    keywords: Words = Field(default_factory=list)
    entities: Mentions = Field(default_factory=list)


def strict(properties: dict[str, object]) -> dict[str, object]:
    """Return the JSON schema of an object for services that enforce it: all properties required, no additional ones."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


_STRING: dict[str, Any] = {"type": "string"}
_INT: dict[str, Any] = {"type": "integer"}
_FINDING = strict({"title": _STRING, "summary": _STRING})
_ENTITY = strict({"name": _STRING, "entityType": _STRING, "confidence": _INT})

INDEX_SCHEMA: dict[str, object] = strict(
    {
        "segments": _array(
            strict(
                {
                    "segment_id": _STRING,
                    "screen_ids": _array(_INT),
                    "event": strict({"title": _STRING, "summary": _STRING, "importance": _INT, "confidence": _INT}),
                    "derived": strict({kind.value: _array(_FINDING) for kind in DERIVED}),
                    "merge_hint": strict(
                        {
                            "decision": {"type": "string", "enum": ["NEW", "MERGE"]},
                            "thread_id": {"type": ["string", "null"]},
                        }
                    ),
                    "keywords": _array(_STRING),
                }
            )
        ),
        "entities": _array(_STRING),
        "screenshots": _array(
            strict(
                {
                    "screenshot_id": _INT,
                    "ocr_text": _STRING,
                    "ui_text_snippets": _array(_STRING),
                    "app_guess": strict({"name": _STRING, "confidence": {"type": "number"}}),
                }
            )
        ),
    }
)

EXPAND_SCHEMA: dict[str, object] = strict(
    {
        "nodes": _array(
            strict(
                {
                    "kind": {"type": "string", "enum": [kind.value for kind in NodeKind]},
                    "thread_id": {"type": ["string", "null"]},
                    "title": _STRING,
                    "summary": _STRING,
                    "keywords": _array(_STRING),
                    "entities": _array(_ENTITY),
                    "importance": _INT,
                    "confidence": _INT,
                    "screenshot_ids": _array(_INT),
                    "event_time": {"type": ["integer", "null"]},
                }
            )
        ),
        "edges": _array(strict({"from_index": _INT, "to_index": _INT, "edge_type": _STRING})),
    }
)

MERGE_SCHEMA: dict[str, object] = strict(
    {"title": _STRING, "summary": _STRING, "keywords": _array(_STRING), "entities": _array(_ENTITY)}
)
