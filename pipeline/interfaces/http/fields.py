"""Types of the fields of requests: bounded, and free of characters that SQL, logs and terminals refuse."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from pipeline.engine.tables import storable

MAX_LIMIT, MAX_WAIT_S = 200, 60
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_CONTROLS_BUT_LINES = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _line(text: str) -> str:
    if _CONTROLS.search(text) or storable(text) != text:
        raise ValueError("must not have control characters")
    return text


def clean_lines(text: str) -> str:
    """Return the text unchanged. Raises `ValueError` for lone surrogates, and for control characters other than line
    breaks and tabs."""
    if _CONTROLS_BUT_LINES.search(text) or storable(text) != text:
        raise ValueError("must not have control characters other than line breaks and tabs")
    return text


def _base64(text: str) -> str:
    if not _BASE64.fullmatch(text):
        raise ValueError("is not Base64")
    return text


DROPPED = "dropped"
"""In the metadata of a schema: the model keeps only whether the field has a value, and drops the value."""


@dataclass(frozen=True)
class _Something:
    """Reads any value as its truth, and drops the value."""

    def __get_pydantic_core_schema__(self, source: type[bool], _: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            bool, metadata={DROPPED: True}, json_schema_input_schema=core_schema.any_schema()
        )


Given = Annotated[bool, _Something()]
"""Whether a request has a field that Penstock ignores or refuses."""
CLEAN = AfterValidator(_line)
"""Allows one line, for text whose field limits its length."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True), CLEAN]
"""A name that people choose: one line, not empty."""
Line = Annotated[str, StringConstraints(max_length=500), CLEAN]
"""One line, perhaps empty."""
Url = Annotated[str, StringConstraints(min_length=1, max_length=4000), CLEAN]
"""An address that a request names. `reading.web` checks later whether Penstock may fetch it."""
CLEAN_LINES = AfterValidator(clean_lines)
"""Allows many lines, for text whose field limits its length."""
Prose = Annotated[str, StringConstraints(max_length=100_000), CLEAN_LINES]
"""A text of many lines."""
LongProse = Annotated[str, StringConstraints(max_length=5_000_000), CLEAN_LINES]
"""A text as long as a book."""
Base64 = Annotated[str, StringConstraints(max_length=90_000_000), AfterValidator(_base64)]
"""A file in a request. The limit of the body limits its size."""
Word = Annotated[str, StringConstraints(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]
"""A technical name: a provider, a model, a queue, a setting."""
Choice = Literal[""] | Word
"""A provider or a model; empty: the default."""
Id = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
"""An id that Penstock gave."""
HexId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,32}$")]
"""An id of hexadecimal digits: of documents, bases, items."""
GivenId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
"""An id that a node, a gateway or one of its sessions gave, in a path."""
DeadLetterId = Annotated[str, Path(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")]
"""The id of a dead letter of the gateway, in a path."""
RowId = Annotated[int, Path(ge=1, le=2**53 - 1)]
"""The number of a row, in a path."""
PageNumber = Annotated[int, Path(ge=1, le=1_000_000, description="A page's position in the result, from 1.")]

CredentialName = Annotated[Name, Field(max_length=100)]
"""The name of a key's or token's holder."""
LifeDays = Annotated[float, Field(gt=0, le=36_600)] | None
"""Days until a key or token expires; None: never."""

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="At most this many.")]
EventTypes = Annotated[list[Annotated[Line, Field(max_length=80)]], Field(max_length=50)]
"""Types of events that an endpoint of webhooks wants."""
Search = Annotated[Line | None, Query(description="Only items with this text in their name.")]
Wait = Annotated[
    float,
    Query(ge=0, le=MAX_WAIT_S, description="Answer when the work has ended, or after this many seconds."),
]


class Strict(BaseModel):
    """The body of a request. The first unknown name ends its validation, however many follow."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _knows_all_names(cls, values: Any) -> Any:
        known = cls._names()
        for name in values if isinstance(values, dict) else ():
            if name not in known:
                error = InitErrorDetails(type="extra_forbidden", loc=(str(name),), input=None)
                raise ValidationError.from_exception_data(cls.__name__, [error])
        return values

    @classmethod
    def _names(cls) -> set[str]:
        names = set(cls.model_fields)
        for field in cls.model_fields.values():
            alias = field.validation_alias
            names |= {str(name) for name in (alias.choices if isinstance(alias, AliasChoices) else [alias])}
        return names
