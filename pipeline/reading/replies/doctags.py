"""Replies in DocTags: Granite-Docling."""

import re

from pipeline.reading.export.hypertext import unescape
from pipeline.reading.replies import tables
from pipeline.reading.replies.assembly import assemble, scaled
from pipeline.reading.replies.form import Form, Parsed, Region
from pipeline.reading.replies.formulas import apart

_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-z][a-z0-9_]*+)/?>|<_[^<>\n]{1,30}+>")
_LOCATION = re.compile(r"loc_([0-9]{1,5})")
_HEADING = re.compile(r"section_header_level_([0-9])")
_CONTAINERS = frozenset(
    {"doctag", "ordered_list", "unordered_list", "page_break", "form", "key_value_region", "list", "group"}
)
_ELEMENTS = frozenset(
    {"title", "text", "paragraph", "list_item", "caption", "footnote", "page_header", "page_footer", "formula", "code"}
    | {"picture", "chart", "otsl", "table", "document_index", "checkbox_selected", "checkbox_unselected", "inline"}
    | {"reference", "handwritten_text", "smiles"}
)
_TABLES = frozenset({"otsl", "table", "document_index"})
_CELLS = frozenset({"fcel", "ecel", "lcel", "ucel", "xcel", "nl", "ched", "rhed", "srow"})

_MOST_OPEN = 20
"""The most elements inside one another: an end copies the text of its element."""


def read(form: Form, text: str, size: tuple[int, int]) -> Parsed:
    """Return the page of DocTags. The last end tag may be missing: servers stop at it."""
    reader = _Reader(form, size)
    end = 0
    for match in _TAG.finditer(text):
        reader.text(text[end : match.start()])
        reader.tag(match)
        end = match.end()
    reader.text(text[end:])
    complete = reader.close() or not text
    return assemble(form, [region for region in reader.regions if region is not None], size, complete=complete)


class _Element:
    def __init__(self, name: str, place: int) -> None:
        self.name = name
        self.place = place
        self.locations: list[float] = []
        self.parts: list[str] = []


class _Reader:
    def __init__(self, form: Form, size: tuple[int, int]) -> None:
        self.regions: list[Region | None] = []
        """The regions in the order in which they begin; None while one is open, and for elements within a line."""
        self._form = form
        self._size = size
        self._open: list[_Element] = []
        self._lists: list[int] = []
        self._known = False
        self._stray: list[str] = []
        """Text outside of all elements, which comes last."""

    def text(self, text: str) -> None:
        if self._open:
            self._open[-1].parts.append(text)
        elif text.strip():
            self._stray.append(text)

    def tag(self, match: re.Match[str]) -> None:
        name = match["name"]
        location = _LOCATION.fullmatch(name) if name else None
        top = self._open[-1] if self._open else None
        if name is None:
            if top is None or top.name != "code":  # otherwise the language
                self.text(match[0])
        elif location:
            if top is not None:
                top.locations.append(float(location[1]))
        elif name in _CONTAINERS:
            self._known = True
            self._list(name, closing=bool(match["end"]))
        elif name in _ELEMENTS or _HEADING.fullmatch(name):
            self._known = True
            if match["end"]:
                self._end(name)
            elif len(self._open) < _MOST_OPEN:
                self._open.append(_Element(name, len(self.regions)))
                self.regions.append(None)
        elif top is None or top.name not in {"picture", "chart"} or name in _CELLS:  # otherwise the kind of picture
            self.text(match[0])

    def close(self) -> bool:
        """End what is open; return whether the reply was whole."""
        whole = self._known and not self._open and not self._stray
        while self._open:
            self._pop()
        if self._stray:
            self.regions.append(Region("text", tables.literal("".join(self._stray).strip())))
        return whole

    def _list(self, name: str, *, closing: bool) -> None:
        if name in {"ordered_list", "unordered_list"}:
            if not closing:
                self._lists.append(0 if name == "ordered_list" else -1)
            elif self._lists:
                self._lists.pop()

    def _end(self, name: str) -> None:
        if any(element.name == name for element in self._open):
            while self._pop() != name:
                pass

    def _pop(self) -> str:
        element = self._open.pop()
        name, text = element.name, "".join(element.parts).strip()
        parent = self._open[-1] if self._open else None
        if parent is not None and parent.name in {"inline", "list_item", "text", "paragraph"}:
            parent.parts.append(f" ${apart(text)}$ " if name == "formula" else f" {text} ")
            return name
        box = scaled(self._form, self._size, element.locations[:4])
        self.regions[element.place] = Region(name.partition("_level_")[0], self._markdown(name, text), box)
        return name

    def _markdown(self, name: str, text: str) -> str:
        if name in _TABLES or name in {"code", "formula"} or (name == "chart" and tables.is_otsl(text)):
            return text
        text = tables.literal(unescape(text))
        heading = _HEADING.fullmatch(name)
        if heading:
            return "#" * min(int(heading[1]) + 1, 6) + f" {' '.join(text.split())}"
        if name == "list_item" and self._lists and self._lists[-1] >= 0:
            self._lists[-1] += 1
            return text if re.match(r"\d+[.)]", text) else f"{self._lists[-1]}. {text}"
        if name.startswith("checkbox"):
            return f"{'[x]' if name == 'checkbox_selected' else '[ ]'} {text}"
        return text
