"""Parse HTML, also without its optional end tags, and write it as Markdown that displays its text as text."""

import re
from collections.abc import Callable
from typing import Any

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from markitdown import DocumentConverterResult, converters
from markitdown.converters._markdownify import _CustomMarkdownify

from pipeline.reading.layout import inline
from pipeline.reading.replies import markup

_TABLE = frozenset({"table"})
_LISTS = frozenset({"ul", "ol", "menu", "dl", "table", "td", "th"})
_CELLS = frozenset({"td", "th"})
_GROUPS = frozenset({"thead", "tbody", "tfoot"})
_TERMS = frozenset({"dt", "dd"})
_ENDED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "li": (frozenset({"li"}), _LISTS),
    **dict.fromkeys(_TERMS, (_TERMS, _LISTS)),
    **dict.fromkeys(_CELLS, (_CELLS, _TABLE)),
    "tr": (frozenset({"tr"}), _TABLE),
    **dict.fromkeys(_GROUPS, (_GROUPS, _TABLE)),
}
"""The elements that a start tag ends, and those past which it ends none."""
_BLOCKS = """address article aside blockquote details div dl fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6
header hr main menu nav ol p pre section table ul"""
_ENDED |= dict.fromkeys(_BLOCKS.split(), (frozenset({"p"}), frozenset({"table", "td", "th", "caption", "button"})))
_STARTERS = frozenset(_ENDED) | {"br"}
"""The elements after which a line begins."""
_ADDRESS = re.compile(r"https?://|#", re.IGNORECASE)
"""How the address of a link begins that leads somewhere from the Markdown too."""
_MARKDOWNIFY: Any = _CustomMarkdownify  # whose types lack half of its methods
_FEED: Any = converters.RssConverter
_MAX_FILLED = 100_000
"""How many empty cells take the places of cells that span rows, in one document."""


class Page(BeautifulSoup):
    """A page whose lists, tables and paragraphs need no end tags."""

    def __init__(self, html: str) -> None:
        super().__init__(html, "html.parser")

    def handle_starttag(self, name: str, *args: Any, **options: Any) -> Tag | None:
        """Begin an element, after the end of those that it ends."""
        ended, scope = _ENDED.get(name, (frozenset[str](), frozenset[str]()))
        if any(self.open_tag_counter.get(other) for other in ended):
            for node in reversed(self.tagStack):
                if node.name in ended:
                    self.endData()
                    self._popToTag(node.name)
                    break
                if node.name in scope:
                    break
        return super().handle_starttag(name, *args, **options)


class Converter(converters.HtmlConverter):
    """Converts HTML as markitdown does, with text escaped and tables whose columns stay in place."""

    def convert_string(self, html_content: str, **_: Any) -> DocumentConverterResult:
        """Convert HTML. Raises `RecursionError`."""
        return self.convert_page(Page(html_content))

    def convert_page(self, page: Page) -> DocumentConverterResult:
        """Convert a parsed page, which it changes."""
        for element in page(["script", "style"]):
            element.extract()
        _fill_spans(page)
        # The first row of a table without a head becomes it, instead of an empty row above.
        try:
            markdown = _Markdown(table_infer_header=True).convert_soup(page.find("body") or page)
        except RecursionError:  # nested too deeply: the text alone, as markitdown does
            markdown = inline.escaped((page.find("body") or page).get_text("\n", strip=True))
        return DocumentConverterResult(markdown.strip(), title=page.title.string if page.title else None)


class Feed(_FEED):  # type: ignore[misc]
    """Converts RSS and Atom as markitdown does, with titles and texts escaped."""

    title = ""
    """The first title that was read, as text: the feed's, if it has one."""

    def _get_flattened_text(self, *args: Any, **options: Any) -> str | None:
        words = super()._get_flattened_text(*args, **options)
        self.title = self.title or words or ""
        return inline.literal(words) if words else None

    def _parse_content(self, content: str, *, base_url: str = "", **_: Any) -> str:
        page = Page(content)
        self._resolve_content_links(page, base_url)
        return Converter().convert_page(page).markdown


class _Markdown(_MARKDOWNIFY):  # type: ignore[misc]
    def escape(self, text: str, *_: Any) -> str:
        return inline.escaped(text)

    def process_text(self, el: NavigableString, parent_tags: set[str] | None = None) -> str:
        text = str(super().process_text(el, parent_tags=parent_tags))
        if not text.strip() or (parent_tags or set()) & {"_inline", "_noformat"}:
            return text
        lines = text.split("\n")
        first = 0 if _begins_line(el) else 1
        lines[first:] = map(_as_text, lines[first:])
        return "\n".join(lines)

    def convert_a(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        if _ADDRESS.match(str(el.get("href", ""))):
            return str(super().convert_a(el, text, parent_tags))
        return _beside(el, text)

    def convert_img(self, el: Tag, text: str, parent_tags: set[str]) -> str:  # noqa: ARG002  (passed by name)
        description = " ".join(str(el.get("alt", "")).split())
        return _beside(el, description if "_noformat" in parent_tags else inline.literal(description))

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        code = text.strip("\n")
        return f"\n\n{markup.fenced(code)}\n\n" if "```" in code else str(super().convert_pre(el, text, parent_tags))

    def convert_u(self, el: Tag, text: str, parent_tags: set[str]) -> str:  # noqa: ARG002  (passed by name)
        return text

    def convert_td(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return self._cell(super().convert_td, el, text, parent_tags)

    def convert_th(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return self._cell(super().convert_th, el, text, parent_tags)

    def _cell(self, convert: Callable[..., Any], el: Tag, text: str, parent_tags: set[str]) -> str:
        return str(convert(el, text.replace("|", "\\|"), parent_tags))


def _beside(el: Tag, text: str) -> str:
    """Return the text of a link or picture, apart from one just before it: styles do this, or it would be one word."""
    return f" {text}" if text and getattr(el.previous_sibling, "name", None) in {"a", "img"} else text


def _begins_line(node: Any) -> bool:
    while True:
        before = node.previous_sibling
        while isinstance(before, NavigableString) and not before.strip():
            before = before.previous_sibling
        if before is not None:
            return before.name in _STARTERS
        node = node.parent
        if node is None or node.name not in {"span", "a", "font", "small", "label", "abbr", "cite", "time"}:
            return node is None or node.name not in {"b", "strong", "i", "em", "u", "s", "del", "q"}


def _as_text(line: str) -> str:
    words = line.lstrip()
    return line[: len(line) - len(words)] + inline.at_line_start(words)


def _fill_spans(page: BeautifulSoup) -> None:
    """Put an empty cell wherever a cell from a row above reaches."""
    left = _MAX_FILLED
    parent, open_cells = None, dict[int, tuple[int, str]]()
    for row in page.find_all("tr"):
        if row.parent is not parent:
            parent, open_cells = row.parent, {}
        column, reached = 0, dict[int, tuple[int, str]]()

        for cell in [*row.find_all(["td", "th"], recursive=False), None]:
            while column in open_cells and left > 0:
                rows, name = open_cells.pop(column)
                empty = page.new_tag(name)
                row.append(empty) if cell is None else cell.insert_before(empty)
                if rows > 1:
                    reached[column] = (rows - 1, name)
                column, left = column + 1, left - 1
            if cell is None:
                break
            rows, columns = _span(cell, "rowspan"), _span(cell, "colspan")
            if rows > 1:
                reached |= dict.fromkeys(range(column, column + columns), (rows - 1, cell.name))
            column += columns
        open_cells = reached


def _span(cell: Tag, name: str) -> int:
    text = str(cell.get(name, "1"))
    return max(1, min(1000, int(text))) if text.isascii() and text.isdigit() and len(text) < 9 else 1
