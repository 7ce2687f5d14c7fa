"""Markdown as the console shows it: each text rendered once, few at a time, and else as it was written."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from markupsafe import Markup

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.operations.quotas import AtOnce, TooManyAtOnce
from pipeline.reading.export.effort import by_child, is_small
from pipeline.reading.export.safe_html import harmless

MAX_CHARACTERS = 400_000
"""Longer texts are cut: a page is never so long, and nobody reads on."""
RENDERINGS = AtOnce(4, 2, "texts")
"""Those that a child makes."""
_MOST_KEPT = 20_000_000
_AS_WRITTEN = "This text is shown as it was written"
_TOO_MUCH = f"{_AS_WRITTEN}: laying it out takes too long."
_BUSY = f"{_AS_WRITTEN}: too many texts are being laid out at the moment. Load this page again to try it."


@dataclass(frozen=True)
class Shown:
    """Each of some texts as HTML; with a note, as it was written."""

    parts: list[Markup]
    note: str = ""


class _Kept:
    """Renderings by the hash of their text, the ones used last; an empty one of what takes too long."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: OrderedDict[bytes, list[str]] = OrderedDict()
        self._characters = 0

    def get(self, key: bytes) -> list[str] | None:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: bytes, made: list[str]) -> None:
        with self._lock:
            if key not in self._found:
                self._found[key] = made
                self._characters += self._size(made)
            while self._characters > _MOST_KEPT:
                self._characters -= self._size(self._found.popitem(last=False)[1])

    @staticmethod
    def _size(made: list[str]) -> int:
        return sum(map(len, made)) + 200  # with what holds them


_kept = _Kept()


def html(parts: Sequence[str], caller: str, pictures: str = "") -> Shown:
    """These texts as harmless HTML, for this caller. `pictures` is the address of the pictures that they link to.

    If rendering takes too long, or too many texts are being rendered, show the source instead.
    """
    parts = _cut(parts)
    if not any(parts):
        return Shown([Markup()] * len(parts))
    key = hashlib.sha256(json.dumps([pictures, *parts]).encode()).digest()
    made = _kept.get(key)
    try:
        if made is None:
            made = _rendered(parts, caller, pictures)
            _kept.put(key, made)
    except TooManyAtOnce:
        return Shown(_written(parts), _BUSY)
    except UnitError as error:
        if error.kind is not ErrorKind.PERMANENT:
            return Shown(_written(parts), _BUSY)
        made = []
        _kept.put(key, made)
    # S704: what nh3 lets through.
    return Shown([Markup(part) for part in made]) if made else Shown(_written(parts), _TOO_MUCH)  # noqa: S704


def _rendered(parts: Sequence[str], caller: str, pictures: str) -> list[str]:
    if is_small(parts):
        return harmless(parts, pictures)
    with RENDERINGS.one(caller):
        found: list[str] = by_child("html", parts=parts, pictures=pictures)["html"]
        return found


def _cut(parts: Sequence[str]) -> list[str]:
    cut, left = [], MAX_CHARACTERS
    for part in parts:
        cut.append(part[:left])
        left -= len(cut[-1])
    return cut


def _written(parts: Sequence[str]) -> list[Markup]:
    return [Markup('<pre class="source">{}</pre>').format(part) if part else Markup() for part in parts]
