"""Read a model's reply as JSON of a given shape, or take its valid parts. Pure: it knows no flow and makes no call."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.engine import foreign_json
from pipeline.engine.tables import storable

MAX_REPLY_CHARS = 1_000_000
MAX_ERRORS = 5
"""How many problems of one reply are kept and told to the model."""
MAX_MODEL_CHARS = 120
MAX_DIMENSIONS = 65_536
_HUGE = 3.4e38
"""Vectors are kept with four bytes a number."""
_NUMBERS = {int, float}  # and not bool, which is an int, too
_SEPARATOR = re.compile(r"\s*,?\s*")
_BARE_LIST = r"\[\s*(?=\{)"

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


class BadReply(ValueError):
    """A reply is not JSON of the expected shape. The message says why, for the model and for people."""


@dataclass(frozen=True)
class Read(Generic[Value]):
    """What was understood, and notes in words on what was left out or corrected."""

    value: Value
    notes: tuple[str, ...] = ()


def clean(text: object) -> str:
    """Text that every database accepts: no NUL, no lone surrogates, no blanks at its ends."""
    return str(text).replace("\x00", "").encode("utf-8", "replace").decode().strip()


def model_name(said: object) -> str:
    """The name that a service gives the model that answered, as it is stored; empty if it gives none."""
    return storable(said[:MAX_MODEL_CHARS]) if isinstance(said, str) else ""


def as_json(text: str, max_chars: int | None = MAX_REPLY_CHARS) -> object:
    """The JSON in a reply, bare or in a code fence. Raises `BadReply`."""
    if max_chars is not None and len(text) > max_chars:
        raise BadReply(f"the reply has {len(text):,} characters, more than {max_chars:,}")
    try:
        return foreign_json.loads(_unfenced(text))
    except RecursionError:
        raise BadReply("the reply is nested too deeply") from None
    except ValueError as error:
        raise BadReply(f"the reply is not JSON: {error}") from None


def _unfenced(text: str) -> str:
    """What stands in the code fence that is around all of the text, or the text."""
    begin, end = text.find("```"), text.rfind("```")
    if begin == end or text[:begin].strip() or text[end + 3 :].strip():
        return text
    language, line_end, inside = text[begin + 3 : end].partition("\n")
    word = language.strip()
    return inside if line_end and (not word or (word.isascii() and word.isalpha())) else text


def as_model(model: type[Model], data: object) -> Model:
    """`data` in the shape of `model`. Raises `BadReply`."""
    if not isinstance(data, dict):
        raise BadReply("the reply is not a JSON object")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        lines = [f"{'.'.join(map(str, item['loc'])) or 'the reply'}: {item['msg']}" for item in found[:MAX_ERRORS]]
        more = f"; and {len(found) - MAX_ERRORS} more" if len(found) > MAX_ERRORS else ""
        raise BadReply(clean("; ".join(lines) + more)) from None
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


def lists_in(text: str, names: Iterable[str]) -> Mapping[str, list[object]]:
    """The lists of these names at the top of a reply, up to where it is cut off if it is not valid JSON."""
    names = list(names)
    try:
        data = as_json(text)
    except BadReply:
        text = text[:MAX_REPLY_CHARS]
        return {name: _whole_items(text, rf'"{re.escape(name)}"\s*:\s*\[\s*') for name in names}
    found = data if isinstance(data, dict) else {}
    return {name: listed if isinstance(listed := found.get(name), list) else [] for name in names}


def only_list_in(text: str, name: str) -> list[object]:
    """The list `name` at the top of a reply, or the list that is the whole reply, up to where the reply is cut off."""
    try:
        data = as_json(text, max_chars=None)
    except BadReply:
        return _whole_items(text, _BARE_LIST)
    found = data.get(name) if isinstance(data, dict) else data
    return found if isinstance(found, list) else []


def finite_vectors(found: object, count: int) -> list[list[float]]:
    """`found` as `count` vectors of one length. Raises a `ValueError` that says what is wrong with them."""
    if not isinstance(found, list) or len(found) != count:
        raise ValueError(f"other than {count} vectors")
    for values in found:
        if not isinstance(values, list) or not values:
            raise ValueError("an empty vector")
        if len(values) > MAX_DIMENSIONS:
            raise ValueError(f"a vector of more than {MAX_DIMENSIONS:,} numbers")
        if not all(type(value) in _NUMBERS and -_HUGE <= value <= _HUGE for value in values):
            raise ValueError("a vector with numbers that are not finite")
    if len({len(values) for values in found}) > 1:
        raise ValueError("vectors of different lengths")
    return [[float(value) for value in values] for values in found]


def _whole_items(text: str, beginning: str) -> list[object]:
    """The items that are complete in the first list after `beginning`, a pattern."""
    begin = re.search(beginning, text)
    position = begin.end() if begin else len(text)
    decoder = json.JSONDecoder(parse_int=foreign_json.whole_number)
    found: list[object] = []
    while position < len(text) and text[position] != "]":
        try:
            item, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        found.append(item)
        if (after := _SEPARATOR.match(text, position)) is not None:
            position = after.end()
    return found
