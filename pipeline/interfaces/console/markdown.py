"""Markdown in the console: each text is rendered once, few at a time; otherwise its source is shown."""

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
"""Longer texts are cut: no real page is so long."""
RENDERINGS = AtOnce(4, "texts")
"""Renderings in child processes."""
_MOST_KEPT = 20_000_000
_AS_WRITTEN = "The source of the text is shown"
_TOO_MUCH = f"{_AS_WRITTEN}: rendering it takes too long."
_BUSY = f"{_AS_WRITTEN}: too many texts are being rendered. Reload the page to try again."


@dataclass(frozen=True)
class Shown:
    """Texts as HTML; with a note, as their source."""

    parts: list[Markup]
    note: str = ""


class _Kept:
    """The renderings used last, by the hash of their text; an empty one marks a text that takes too long."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._renderings: OrderedDict[bytes, list[str]] = OrderedDict()
        self._characters = 0

    def get(self, key: bytes) -> list[str] | None:
        with self._lock:
            if key in self._renderings:
                self._renderings.move_to_end(key)
            return self._renderings.get(key)

    def put(self, key: bytes, html_parts: list[str]) -> None:
        with self._lock:
            if key not in self._renderings:
                self._renderings[key] = html_parts
                self._characters += self._size(html_parts)
            while self._characters > _MOST_KEPT:
                self._characters -= self._size(self._renderings.popitem(last=False)[1])

    @staticmethod
    def _size(html_parts: list[str]) -> int:
        return sum(map(len, html_parts)) + 200  # with the overhead of an entry


_kept = _Kept()


def html(parts: Sequence[str], caller: str, pictures: str = "") -> Shown:
    """Return these texts as sanitised HTML, in all at most `MAX_CHARACTERS` of them. `pictures`: the address below
    which linked pictures are.

    Shows their source, with a note, if rendering fails or takes too long, or if too many texts of `caller` or of all
    callers are being rendered.
    """
    parts = _cut(parts)
    if not any(parts):
        return Shown([Markup()] * len(parts))
    key = hashlib.sha256(json.dumps([pictures, *parts]).encode()).digest()
    html_parts = _kept.get(key)
    try:
        if html_parts is None:
            html_parts = _rendered(parts, caller, pictures)
            _kept.put(key, html_parts)
    except TooManyAtOnce:
        return Shown(_written(parts), _BUSY)
    except UnitError as error:
        if error.kind is not ErrorKind.PERMANENT:
            return Shown(_written(parts), _BUSY)
        html_parts = []
        _kept.put(key, html_parts)
    # S704: nh3 sanitised it.
    return Shown([Markup(part) for part in html_parts]) if html_parts else Shown(_written(parts), _TOO_MUCH)  # noqa: S704


def _rendered(parts: Sequence[str], caller: str, pictures: str) -> list[str]:
    if is_small(parts):
        return harmless(parts, pictures)
    with RENDERINGS.one(caller):
        rendered: list[str] = by_child("html", parts=parts, pictures=pictures)["html"]
        return rendered


def _cut(parts: Sequence[str]) -> list[str]:
    cut, remaining = [], MAX_CHARACTERS
    for part in parts:
        cut.append(part[:remaining])
        remaining -= len(cut[-1])
    return cut


def _written(parts: Sequence[str]) -> list[Markup]:
    return [Markup('<pre class="source">{}</pre>').format(part) if part else Markup() for part in parts]
