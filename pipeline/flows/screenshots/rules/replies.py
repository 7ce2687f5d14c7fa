"""How a model's reply is read: as JSON of a shape, or, where it is none, those parts that are."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

MAX_REPLY_CHARS = 1_000_000
MAX_ERRORS = 5
"""Problems of one reply that are told to the model, and kept."""
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(.*?)\n?```\s*\Z", re.DOTALL)
_NEXT = re.compile(r"\s*,?\s*")

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


class BadReply(ValueError):
    """A reply is no JSON of the shape; the message says what is wrong, for the model and for people."""


@dataclass(frozen=True)
class Read(Generic[Value]):
    """What was understood, and in words what was left out or put right."""

    value: Value
    notes: tuple[str, ...] = ()


def clean(text: object) -> str:
    """Text as every database takes it: no NUL, no lone surrogates, no blanks at its ends."""
    return str(text).replace("\x00", "").encode("utf-8", "replace").decode().strip()


def as_json(text: str) -> object:
    """The JSON in a reply, bare or in a code fence. Raises `BadReply`."""
    if len(text) > MAX_REPLY_CHARS:
        raise BadReply(f"the reply has {len(text):,} characters; {MAX_REPLY_CHARS:,} are read")
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except RecursionError:
        raise BadReply("the reply is nested too deeply") from None
    except ValueError as error:
        raise BadReply(f"the reply is no JSON: {error}") from None


def as_model(model: type[Model], data: object) -> Model:
    """`data` in the shape of `model`. Raises `BadReply`."""
    if not isinstance(data, dict):
        raise BadReply("the reply is no JSON object")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadReply(problems(error)) from None
    except RecursionError:
        raise BadReply("the reply is nested too deeply") from None


def valid(model: type[Model], items: Iterable[object]) -> list[Model]:
    """Those of `items` that have the shape."""
    found = []
    for item in items:
        try:
            found.append(model.model_validate(item))
        except (ValidationError, RecursionError):
            continue
    return found


def problems(error: ValidationError) -> str:
    """What is wrong, in one line."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [f"{'.'.join(map(str, item['loc'])) or 'the reply'}: {item['msg']}" for item in found[:MAX_ERRORS]]
    more = f"; and {len(found) - MAX_ERRORS} more" if len(found) > MAX_ERRORS else ""
    return clean("; ".join(lines) + more)


def lists_in(text: str, names: Iterable[str]) -> Mapping[str, list[object]]:
    """The lists of these names at the top of a reply, whatever is wrong with it: up to where it is cut off."""
    names = list(names)
    try:
        data = as_json(text)
    except BadReply:
        return {name: _whole_items(text[:MAX_REPLY_CHARS], name) for name in names}
    if not isinstance(data, dict):
        return {name: [] for name in names}
    return {name: found if isinstance(found := data.get(name), list) else [] for name in names}


def _whole_items(text: str, name: str) -> list[object]:
    begin = re.search(rf'"{re.escape(name)}"\s*:\s*\[\s*', text)
    position = begin.end() if begin else len(text)
    decoder = json.JSONDecoder()
    found: list[object] = []
    while position < len(text) and text[position] != "]":
        try:
            item, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        found.append(item)
        if (after := _NEXT.match(text, position)) is not None:
            position = after.end()
    return found
