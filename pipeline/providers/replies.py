"""Read a model's reply as JSON of a given shape, or extract its valid parts. Pure: it makes no calls."""

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
"""How many problems of one reply are kept and reported to the model."""
MAX_MODEL_CHARS = 120
MAX_DIMENSIONS = 65_536
_HUGE = 3.4e38
"""The largest number that fits: vectors are stored with four bytes per number."""
_NUMBERS = {int, float}  # but not bool, a subclass of int
_SEPARATOR = re.compile(r"\s*,?\s*")
_BARE_LIST = r"\[\s*(?=\{)"

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


class BadReply(ValueError):
    """A reply is not JSON of the expected shape. The message says why, for the model and for people."""


@dataclass(frozen=True)
class Read(Generic[Value]):
    """The understood value, and notes in words about omissions and corrections."""

    value: Value
    notes: tuple[str, ...] = ()


def clean(text: object) -> str:
    """Return the text of a value as every database accepts it: no NUL, no lone surrogates, no blanks at its ends."""
    return str(text).replace("\x00", "").encode("utf-8", "replace").decode().strip()


def model_name(reported: object) -> str:
    """Return the model's name as reported by a service, cut to `MAX_MODEL_CHARS`; empty if none is reported."""
    return storable(reported[:MAX_MODEL_CHARS]) if isinstance(reported, str) else ""


def as_json(text: str, max_chars: int | None = MAX_REPLY_CHARS) -> object:
    """Return the JSON value in a reply, bare or in a code fence. Raises `BadReply`. `max_chars`: the longest accepted
    reply; None: any."""
    if max_chars is not None and len(text) > max_chars:
        raise BadReply(f"the reply has {len(text):,} characters, more than {max_chars:,}")
    try:
        return foreign_json.loads(_unfenced(text))
    except RecursionError:
        raise BadReply("the reply is nested too deeply") from None
    except ValueError as error:
        raise BadReply(f"the reply is not JSON: {error}") from None


def _unfenced(text: str) -> str:
    """Return the content of a code fence around all of the text, or the text."""
    begin, end = text.find("```"), text.rfind("```")
    if begin == end or text[:begin].strip() or text[end + 3 :].strip():
        return text
    language, line_end, inside = text[begin + 3 : end].partition("\n")
    word = language.strip()
    return inside if line_end and (not word or (word.isascii() and word.isalpha())) else text


def as_model(model: type[Model], data: object) -> Model:
    """Validate `data` as `model`. Raises `BadReply`."""
    if not isinstance(data, dict):
        raise BadReply("the reply is not a JSON object")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        lines = [f"{'.'.join(map(str, item['loc'])) or 'the reply'}: {item['msg']}" for item in problems[:MAX_ERRORS]]
        more = f"; and {len(problems) - MAX_ERRORS} more" if len(problems) > MAX_ERRORS else ""
        raise BadReply(clean("; ".join(lines) + more)) from None
    except RecursionError:
        raise BadReply("the reply is nested too deeply") from None


def valid(model: type[Model], items: Iterable[object]) -> list[Model]:
    """Return those of the items that have the shape of `model`, as such models, in order; leave out the others."""
    models = []
    for item in items:
        try:
            models.append(model.model_validate(item))
        except (ValidationError, RecursionError):
            continue
    return models


def lists_in(text: str, names: Iterable[str]) -> Mapping[str, list[object]]:
    """Return the list of each of these names at the top of a reply, empty if it is missing. Of a reply that is invalid
    JSON, too long or nested too deeply, return the whole items, before it breaks off, of the first list with the name
    at any depth."""
    names = list(names)
    try:
        data = as_json(text)
    except BadReply:
        text = text[:MAX_REPLY_CHARS]
        return {name: _whole_items(text, rf'"{re.escape(name)}"\s*:\s*\[\s*') for name in names}
    fields = data if isinstance(data, dict) else {}
    return {name: listed if isinstance(listed := fields.get(name), list) else [] for name in names}


def only_list_in(text: str, name: str) -> list[object]:
    """Return the list `name` at the top of a reply, or the reply itself if it is a list; of invalid JSON, the items of
    the first list of objects before it breaks off. Empty without a list."""
    try:
        data = as_json(text, max_chars=None)
    except BadReply:
        return _whole_items(text, _BARE_LIST)
    listed = data.get(name) if isinstance(data, dict) else data
    return listed if isinstance(listed, list) else []


def finite_vectors(rows: object, count: int) -> list[list[float]]:
    """Return `rows` as `count` vectors of floats, checked: not empty, all of one length up to `MAX_DIMENSIONS`, and of
    finite numbers. Raises `ValueError`, which describes the problem."""
    if not isinstance(rows, list) or len(rows) != count:
        raise ValueError(f"other than {count} vectors")
    for values in rows:
        if not isinstance(values, list) or not values:
            raise ValueError("an empty vector")
        if len(values) > MAX_DIMENSIONS:
            raise ValueError(f"a vector of more than {MAX_DIMENSIONS:,} numbers")
        if not all(type(value) in _NUMBERS and -_HUGE <= value <= _HUGE for value in values):
            raise ValueError("a vector with numbers that are not finite")
    if len({len(values) for values in rows}) > 1:
        raise ValueError("vectors of different lengths")
    return [[float(value) for value in values] for values in rows]


def _whole_items(text: str, beginning: str) -> list[object]:
    """Return the complete items of the first list after `beginning`, a pattern."""
    begin = re.search(beginning, text)
    position = begin.end() if begin else len(text)
    decoder = json.JSONDecoder(parse_int=foreign_json.whole_number)
    items: list[object] = []
    while position < len(text) and text[position] != "]":
        try:
            item, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        items.append(item)
        if (after := _SEPARATOR.match(text, position)) is not None:
            position = after.end()
    return items
