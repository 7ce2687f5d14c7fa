"""Replies in HTML whose elements carry `data-bbox`: Chandra's labelled divisions, Qwen3-VL's paragraphs and tables."""

import re
from collections.abc import Iterable
from dataclasses import replace

from pipeline.reading.export.hypertext import Tag, parts
from pipeline.reading.replies import markup
from pipeline.reading.replies.assembly import assemble, scaled
from pipeline.reading.replies.form import Box, Form, Parsed, Region
from pipeline.reading.replies.marked_regions import numbers

_ATTRIBUTE = re.compile(
    r"""(?<![^\s"'])(data-bbox|data-label|class)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""", re.IGNORECASE
)
_VOID = frozenset({"img", "hr", "br", "input"})
_LABELS = {"table": "table", "img": "image", "ul": "list", "ol": "list", "pre": "code", "figure": "figure"}
_BLANK = "blank_page"


def read(form: Form, text: str, size: tuple[int, int]) -> Parsed:
    """Return the page of elements with boxes; other elements and texts between them count as text without a box."""
    reader = _Reader(form, size)
    for part in parts(text):
        reader.add(part)
    reader.end(complete=False)
    blank = any(region.label == _BLANK for region in reader.regions)
    regions = [region for region in reader.regions if region.label != _BLANK]
    # A model that marks nothing answered in another form.
    complete = reader.complete and (not text or blank or any(region.box for region in regions) or reader.boxes > 0)
    return replace(assemble(form, regions, size, complete=complete), blank=blank and not regions)


class _Reader:
    def __init__(self, form: Form, size: tuple[int, int]) -> None:
        self.regions: list[Region] = []
        self.complete = True
        self.boxes = 0
        self._form = form
        self._size = size
        self._parts: list[str | Tag] = []
        self._element: Tag | None = None
        self._label = "text"
        self._box: Box | None = None
        self._depth = 0

    def add(self, part: str | Tag) -> None:
        values = _attributes(part.attributes) if isinstance(part, Tag) and not part.closing else {}
        element = self._element
        if "data-bbox" in values and (element is None or (element.name == "div" and "data-label" in values)):
            # Labelled divisions do not nest: one without its end stops where the next begins.
            self.end(complete=element is None)
            assert isinstance(part, Tag)
            self._begin(part, values)
            return
        self._parts.append(part)
        if element is None or not isinstance(part, Tag) or part.name != element.name:
            return
        self._depth += -1 if part.closing else 1
        if self._depth == 0:
            self.end(complete=True)

    def _begin(self, tag: Tag, values: dict[str, str]) -> None:
        self.boxes += 1
        self._element, self._depth, self._parts = tag, 1, [tag]
        label = values.get("data-label") or _LABELS.get(tag.name) or values.get("class") or "text"
        self._label = label.strip().lower().replace("-", "_").replace(" ", "_")
        self._box = scaled(self._form, self._size, numbers(values["data-bbox"]))
        self.complete = self.complete and (self._box is not None or self._label == _BLANK)
        if tag.name in _VOID or tag.attributes.rstrip().endswith("/"):
            self.end(complete=True)

    def end(self, *, complete: bool) -> None:
        """End the open region, or the text between regions."""
        if self._element is not None:
            self.complete = self.complete and complete
        label = self._form.label(self._label)
        if label in {"table", "code", "formula"}:
            text = _source(self._parts) if label == "table" else _texts(self._parts)
        else:
            text = markup.from_parts(self._parts)
        if text or self._element is not None:
            self.regions.append(Region(self._label, text, self._box))
        self._element, self._label, self._box, self._parts, self._depth = None, "text", None, [], 0


def _attributes(text: str) -> dict[str, str]:
    return {name.lower(): double or single for name, double, single in _ATTRIBUTE.findall(text)}


def _source(some: Iterable[str | Tag]) -> str:
    return "".join(map(markup.source, some))


def _texts(some: Iterable[str | Tag]) -> str:
    return "".join(part if isinstance(part, str) else "\n" * (part.name == "br") for part in some).strip("\n")
