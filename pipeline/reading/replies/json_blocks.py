"""Replies that are a JSON list of blocks with box, category and text: dots.ocr, Infinity-Parser2."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from pipeline.reading.replies.assembly import assemble, scaled
from pipeline.reading.replies.form import Form, Parsed, Region
from pipeline.reading.replies.marked_regions import numbers

_BOX, _LABEL, _TEXT = ("bbox", "bbox_2d", "box"), ("category", "label", "type"), ("text", "content")
_START = re.compile(r'\{\s*+"(?:bbox|bbox_2d|box|category|label|type)"\s*+:')
_WRITTEN_BOX = re.compile(r'"(?:bbox|bbox_2d|box)"\s*+:\s*+\[([^\[\]{}"]*+)')
_WRITTEN_LABEL = re.compile(r'"(?:category|label|type)"\s*+:\s*+"([^"\\]{1,60}+)"')
_WRITTEN_TEXT = re.compile(r'"(?:text|content)"\s*+:\s*+"')
_ESCAPE = re.compile(r'\\(["\\/nt])')
_ESCAPED = {"n": "\n", "t": "\t"}
_LATEX_EATEN = str.maketrans({"\f": "\\f", "\b": "\\b", "\x07": "\\a", "\v": "\\v"})
"""Letters of LaTeX commands that JSON read as escapes: `\\frac` without a second backslash."""


def read(form: Form, text: str, size: tuple[int, int]) -> Parsed:
    """Return the page of a list of objects, or of an object with such a list. Of broken JSON the objects that are whole
    count; one without four numbers for its box counts as text alone."""
    items, complete = _items(text)
    regions = []
    seen: set[tuple[str, str, str]] = set()
    for item in items:
        box = _first(item, _BOX)
        label, words = _first(item, _LABEL), _first(item, _TEXT)
        key = (repr(box), str(label), str(words))
        if key in seen:  # the same object once more
            complete = False
            continue
        seen.add(key)
        sides = [_number(side) for side in box if isinstance(side, int | float)] if isinstance(box, list) else []
        region = Region(str(label or "text"), words if isinstance(words, str) else "", scaled(form, size, sides))
        complete = complete and region.box is not None and label is not None
        regions.append(region._replace(text=region.text.translate(_LATEX_EATEN)))
    return assemble(form, regions, size, complete=complete)


def _first(item: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((item[name] for name in names if name in item), None)


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _items(text: str) -> tuple[list[dict[str, Any]], bool]:
    """Return (the objects of a reply, whether the reply is what was expected)."""
    if not text:
        return [], True
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return _whole_objects(text), False
    if isinstance(value, dict) and not any(name in value for name in _BOX):
        value = next((inner for inner in value.values() if isinstance(inner, list)), None)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return [{"text": text}], False
    items = [item for item in value if isinstance(item, dict)]
    return items, len(items) == len(value)


def _whole_objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of broken JSON. Each begins with its box or category, so a fault never reaches the next."""
    found = []
    for part in _parts(text):
        ended = part.rstrip(" \n\t,]")
        try:
            item = json.loads(ended if ended.endswith("}") else ended + "}", strict=False)
        except (ValueError, RecursionError):
            item = _lenient(ended)
        if isinstance(item, dict):
            found.append(item)
    return found or [{"text": text}]


def _parts(text: str) -> Iterator[str]:
    begins = [match.start() for match in _START.finditer(text)]
    yield from (text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=False))


def _lenient(part: str) -> dict[str, Any] | None:
    """Return the fields of an object whose text has quotes or backslashes without escapes. None if it is cut off."""
    box, label, text = _WRITTEN_BOX.search(part), _WRITTEN_LABEL.search(part), _WRITTEN_TEXT.search(part)
    if not (part.endswith("}") and box and label):
        return None
    item: dict[str, Any] = {"bbox": numbers(box[1]), "category": label[1]}
    inner = part[text.end() :].removesuffix("}").rstrip() if text else ""
    if inner.endswith('"'):
        item["text"] = _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), inner[:-1])
    return item
