"""Inputs that are nearly right: a seed with a few things wrong, as a Hypothesis strategy."""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.target import Target

Draw = Callable[[st.SearchStrategy[Any]], Any]
_NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63, 10**30, -(10**30), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"))
_TEXTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "\u202e",
    "\x1b[2J",
    "é" * 300,
    "x" * 5000,
    "1",
    "1e400",
    "NaN",
    "null",
    "{}",
    "../..",
)
_MEMBER_BYTES = 300_000


def _deep(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


ODD = (
    *_NUMBERS,
    *_TEXTS,
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": None},
    _deep(150, list),
    _deep(150, dict),
    [0] * 500,
)
"""Values where others are expected."""


@st.composite
def mutants(draw: Draw, target: Target) -> bytes:
    """A seed of the target with one to four changes."""
    data = draw(st.sampled_from(target.seeds))
    for _ in range(draw(st.integers(1, 4))):
        data = _changed(draw, data, target)
    return data


def _changed(draw: Draw, data: bytes, target: Target) -> bytes:
    if target.shaped and draw(st.integers(0, 3)):
        with suppress(ValueError, RecursionError):
            # Surrogates go out as escapes, since that is how a stranger sends them.
            return json.dumps(_exchanged(draw, json.loads(data), target.words)).encode()
    if data.startswith(b"PK") and draw(st.integers(0, 3)):
        with suppress(Exception):
            return _repacked(draw, data, target.words)
    return _edited(draw, data, target)


def _exchanged(draw: Draw, value: Any, words: Sequence[str]) -> Any:
    """The JSON value with one value in it exchanged, left out, repeated or renamed."""
    places = list(_places(value))
    if not places or not draw(st.integers(0, 9)):
        return draw(st.sampled_from(ODD))
    holder, key = draw(st.sampled_from(places))
    match draw(st.integers(0, 5)):
        case 0:
            del holder[key]
        case 1:
            other, other_key = draw(st.sampled_from(places))
            holder[key] = json.loads(json.dumps(other[other_key]))
        case 2 if isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[key])))
        case 3 if isinstance(holder, dict) and words:
            holder[draw(st.sampled_from(words))] = holder.pop(key)
        case _:
            holder[key] = draw(st.sampled_from(ODD))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(what holds it, under which key) of every value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _repacked(draw: Draw, data: bytes, words: Sequence[str]) -> bytes:
    """The archive with one of its files changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        changed = draw(st.sampled_from(names))
        for name in names:
            content = old.read(name)
            if name == changed and len(content) <= _MEMBER_BYTES:
                content = _spliced(draw, content, words)
            new.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def _edited(draw: Draw, data: bytes, target: Target) -> bytes:
    if not draw(st.integers(0, 5)):
        other = draw(st.sampled_from(target.seeds))
        return data[: draw(st.integers(0, len(data)))] + other[draw(st.integers(0, len(other))) :]
    return _spliced(draw, data, target.words)


def _spliced(draw: Draw, data: bytes, words: Sequence[str]) -> bytes:
    """A part of it exchanged for a word, for any bytes, or for the same part many times."""
    begin = draw(st.integers(0, len(data)))
    end = draw(st.integers(begin, min(len(data), begin + 40)))
    match draw(st.integers(0, 3)):
        case 0 if words:
            new = draw(st.sampled_from(words)).encode("utf-8", "surrogateescape")
        case 1:
            new = data[begin:end] * draw(st.sampled_from([0, 2, 50, 1000]))
        case 2:
            new = str(draw(st.sampled_from(_NUMBERS))).encode()
        case _:
            new = draw(st.binary(max_size=8))
    return data[:begin] + new + data[end:]
