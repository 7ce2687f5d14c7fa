"""Turn Markdown and HTML of models and documents into harmless Markdown.

Of HTML only raised figures, line breaks, marks and tables remain, without attributes. Other elements of HTML become
Markdown, or leave their text alone; a tag that HTML does not know is text of the page. Pictures become their
descriptions. Links lead to HTTP, mail and places on the page. Code and formulas stay as they are, except that a formula
loses whatever a reader without formulas would take for a tag. LaTeX has the delimiters `$` and `$$`.
"""

import re
from bisect import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from textwrap import dedent
from typing import NamedTuple

from pipeline.reading.export.hypertext import TAG, Tag, unescape
from pipeline.reading.replies import tables
from pipeline.reading.replies.formulas import apart, dollars, formula
from pipeline.reading.replies.tables import Table

_KEPT = frozenset({"sub", "sup", "mark"})
_MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "s": "~~", "del": "~~", "strike": "~~"}
_BLOCK_NAMES = """\
address article aside blockquote body caption center dd details div dl dt fieldset figcaption figure footer form
header hr html legend main nav p pre section summary tbody td tfoot th thead tr"""
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_INLINE_NAMES = """\
a abbr acronym area audio base basefont bdi bdo big br button canvas cite code col colgroup data datalist dfn
dialog embed font frame frameset head iframe img input ins kbd label li link map math meta meter noscript object ol
optgroup option output param picture portal progress q rp rt ruby samp script select slot small source span style
svg table template textarea time title track tt u ul var video wbr
chem footer_image header_image page_number signature watermark"""
_INLINE = frozenset(_INLINE_NAMES.split())
"""HTML's elements, and those with which Chandra and Nanonets-OCR mark parts of a page."""
_HEADING = re.compile(r"h[1-6]")
_SILENT = frozenset({"script", "style", "template", "noscript", "iframe", "object", "svg", "title"})
_ATTRIBUTE = re.compile(
    r"""(?<![^\s"'])(href|alt|checked|type|display)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++)))?""",
    re.IGNORECASE,
)

_SIGN = re.compile(
    r"(?P<ticks>`++)|(?P<display>\$\$)|(?P<dollar>\$)|(?P<escape>\\.)|(?P<tag><(?![\s0-9=.,-]))|(?P<picture>!\[)"
    r"|(?P<link>\]\()|(?P<definition>\]:)|(?P<fence>~~~++)"
)
_PICTURE = re.compile(r"!\[([^\[\]]*+)\]\([^()\n]*+(?:\([^()\n]*+\)[^()\n]*+)*+\)")
_AUTOLINK = re.compile(r"<(?:https?://|mailto:)[^\s<>\"'`\\]++>", re.IGNORECASE)
_ADDRESS = re.compile(r"\(?\s*+<?+(?:https?://|mailto:|#)[^\s<>()\\]*+", re.IGNORECASE)
_PAIRS = frozenset({"![", "](", "]:"})
_LINE_END = re.compile(r"[ \t]*+\n(?![ \t]*+\n)")
_ELSEWHERE = re.compile(r"\(\s*+<?+[a-zA-Z][\w+.-]*+:[^()\n]*+(?:\([^()\n]*+\)[^()\n]*+)*+\)")
_TAG_LIKE = re.compile(r"<(?=[a-zA-Z/!?])")
_FENCE = re.compile(r"(`{3,}+(?=[^`|\n]*+$)|~{3,}+(?=[^|\n]*+$))")
"""The start of a block of code. Some readers take a line with `|` for the head of a table."""
_CONTAINED = re.compile(
    r"(?P<prefix>(?:> ?)*+(?P<indent> *+))(?P<marker>(?:[-*+]|\d{1,9}[.)]) {1,4})?"
    r"(?P<fence>`{3,}+(?=[^`|\n]*+$)|~{3,}+(?=[^|\n]*+$))"
)
_SPACES = re.compile(r"\s++")
_TICKS = re.compile(r"`++")
_SPLITS = re.compile(r"(?<!\\)\||\\\\\|")
"""A `|` that ends a cell for some reader."""
_ROWS = re.compile(r"^.*\n(?:(?=[^\n-]*+-)[-:| \t>*+\d.)]++|.*!\[.*)$(?:\n(?![ \t]*+$).*)*+", re.MULTILINE)
"""Lines that may be a table: the head, the rule below it, perhaps beside a picture, and the rows up to a blank line."""
_MATH = re.compile(r"(\$\$[^$]++\$\$|\$[^$\n]++\$)")


class Harmless(NamedTuple):
    """Harmless Markdown, its tables, and whether everything that it opens is closed."""

    text: str
    tables: list[Table]
    complete: bool


def harmless(markdown: str, *, furniture: bool = True, latex: bool = True, html: bool = True) -> Harmless:
    r"""Return Markdown made harmless. Without `furniture`, leave out page numbers in tags.

    `latex`: `\(` and `\[` begin formulas. Without `html`, a tag that does not remain is text of the page."""
    return _Rewriter(markdown, furniture=furniture, latex=latex, html=html).run()


def from_parts(html: Iterable[str | Tag]) -> str:
    """Return the parts of a model's HTML as harmless Markdown."""
    writer = _Writer()
    table: list[str] = []
    depth = 0
    for part in _joined(html):
        if isinstance(part, Tag) and part.name == "table" and not (part.closing and depth == 0):
            depth += -1 if part.closing else 1
            if not depth:
                writer.tables("".join([*table, source(part)]))
                table = []
                continue
        if depth:
            table.append(source(part))  # the reader of tables takes HTML
        else:
            writer.add(part)
    if table:
        writer.tables("".join(table))
    return writer.close()


def _joined(html: Iterable[str | Tag]) -> Iterator[str | Tag]:
    for is_text, run in groupby(html, key=lambda part: isinstance(part, str)):
        if is_text:
            yield "".join(map(str, run))
        else:
            yield from run


def source(part: str | Tag) -> str:
    """Return a part of HTML as HTML."""
    if isinstance(part, str):
        return escape(part, quote=False)
    return f"<{'/' if part.closing else ''}{part.name}{part.attributes}>"


class _Writer:
    """Writes parts of HTML as Markdown. Text is escaped (`add`) or Markdown already (`raw`)."""

    def __init__(self) -> None:
        self.found: list[Table] = []
        self._out: list[str] = []
        self._lists: list[int] = []
        """The open lists: the number of the last item, or -1 for bullets."""
        self._open: dict[str, tuple[int, str]] = {}
        """The open elements whose text is needed at their end: where it begins, and an attribute."""

    def close(self) -> str:
        for name in reversed(list(self._open)):
            self._end(name)
        return "".join(self._out).strip()

    def raw(self, markdown: str) -> None:
        """Write Markdown. What a tag kept apart must not become a picture, a link or other code without it."""
        if not markdown:
            return
        last = self._out[-1] if self._out else ""
        if last.endswith("\n\n"):
            markdown = markdown.lstrip()
        tag = next((piece for piece in reversed(self._out[-4:]) if piece.strip(" \t")), "")
        if tag.rstrip(" \t").endswith(">") and (line_end := _LINE_END.match(markdown)):
            # A tag alone in its line would make HTML of the lines below it, code included.
            markdown = " " + markdown[line_end.end() :]
        pair = last[-1:] + markdown[:1]
        if markdown:
            self._out.append(f"\\{markdown}" if pair in _PAIRS else f" {markdown}" if pair == "``" else markdown)

    def code(self, block: str) -> None:
        """Write a fenced block of code, below a blank line, which ends any HTML."""
        self._gap()
        self._out.append(block if self._out else dedent(block))  # the end of writing strips the first line

    def add(self, part: str | Tag) -> None:
        if isinstance(part, Tag):
            self.tag(part)
        elif self._open.keys() & {"pre", "code", "math"}:
            self._out.append(part)
        else:
            texts = _MATH.split(_SPACES.sub(" ", dollars(part)))
            texts[::2] = [tables.literal(text) for text in texts[::2]]
            texts[1::2] = [apart(text) for text in texts[1::2]]
            self.raw("".join(texts))

    def tables(self, html: str) -> None:
        for item in tables.from_html(html):
            self._gap()
            self._out.append(item.markdown() if isinstance(item, Table) else tables.literal(item))
            if isinstance(item, Table):
                self.found.append(item)
        self._gap()

    def tag(self, tag: Tag, *, html: bool = True) -> None:
        """Write a tag. Without `html`, the text between tags is Markdown."""
        name = tag.name
        if name in _KEPT:
            self._out.append(f"<{'/' if tag.closing else ''}{name}>")
        elif name in _MARKS or name in {"math", "a"} or (html and name in {"pre", "code"}):
            self._hold(tag)
        elif _HEADING.fullmatch(name):
            self._gap()
            if not tag.closing:
                self._out.append("#" * int(name[1]) + " ")
        elif name in {"ul", "ol"}:
            self._list(name, closing=tag.closing)
        elif not tag.closing:
            self._void(tag)
        if name in _BLOCKS and self._lists:
            self._out.append(" ")
        elif name in _BLOCKS:
            self._gap()

    def _hold(self, tag: Tag) -> None:
        if tag.closing:
            self._end(tag.name)
        elif tag.name not in self._open:
            values = _attributes(tag.attributes)
            self._open[tag.name] = len(self._out), values.get("href" if tag.name == "a" else "display", "")

    def _void(self, tag: Tag) -> None:
        if tag.name == "li":
            self._item()
        elif tag.name == "br":
            in_heading = self._out and self._out[-1].startswith("#")
            self._out.append(" " if in_heading else "<br>")
        elif tag.name == "img":
            self.raw(tables.literal(_SPACES.sub(" ", _attributes(tag.attributes).get("alt", ""))))
        elif tag.name == "input":
            values = _attributes(tag.attributes)
            if values.get("type") in {"checkbox", "radio"}:
                self._out.append("[x] " if "checked" in values else "[ ] ")
        elif tag.name == "hr":
            self._gap()
            self._out.append("---")

    def _gap(self) -> None:
        """End the paragraph."""
        # A long text that has no blank at its end costs one look at it.
        while self._out and not self._out[-1][-1:].strip() and not self._out[-1].strip():
            self._out.pop()
        if self._out:
            self._out[-1] = self._out[-1].rstrip()
            self._out.append("\n\n")

    def _list(self, name: str, *, closing: bool) -> None:
        if not closing:
            if not self._lists:
                self._gap()
            self._lists.append(-1 if name == "ul" else 0)
        elif self._lists:
            self._lists.pop()
            if not self._lists:
                self._gap()

    def _item(self) -> None:
        if not self._lists:
            self._lists.append(-1)
        marker = "-"
        if self._lists[-1] >= 0:
            self._lists[-1] += 1
            marker = f"{self._lists[-1]}."
        if self._out and not self._out[-1].endswith("\n\n"):
            self._out[-1] = self._out[-1].rstrip()
            self._out.append("\n")
        self._out.append("    " * (min(len(self._lists), 9) - 1) + marker + " ")

    def _end(self, name: str) -> None:
        if name not in self._open:
            return
        start, attribute = self._open.pop(name)
        inner = "".join(self._out[start:])
        del self._out[start:]
        text = inner.strip()
        if not text:
            self.raw(inner)
        elif name == "math" and attribute == "block":
            self._gap()
            self._out.append(formula(text))
            self._gap()
        elif name == "math":
            self._out.append(f"${apart(' '.join(text.replace('$', '').split()))}$")
        elif name == "pre":
            self.code(fenced(inner.strip("\n")))
            self._gap()
        elif name == "code":
            self.raw(inner if "pre" in self._open else _code_span(text))
        else:
            before, after = inner[: len(inner) - len(inner.lstrip())], inner[len(inner.rstrip()) :]
            self.raw(before + _marked(name, text, attribute) + after)


def _marked(name: str, text: str, address: str) -> str:
    if name == "a":
        return f"[{text}]({address})" if _ADDRESS.fullmatch(address) and "](" not in text else text
    return f"{_MARKS[name]}{text}{_MARKS[name]}" if "\n" not in text else text


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.findall(text)
    return {name.lower(): unescape(double or single or bare) for name, double, single, bare in found}


def fenced(text: str, language: str = "") -> str:
    """Return text as a fenced block of code."""
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def _code_span(text: str) -> str:
    text = " ".join(text.split())
    ticks = "`" * (1 + max(map(len, _TICKS.findall(text)), default=0))
    space = " " if len(ticks) > 1 else ""
    # In the row of a Markdown table, the code might end at a `|`.
    return f"{ticks}{space}{text}{space}{ticks}" if "|" not in text else tables.literal(text)


class _Next:
    """Where a string occurs next in a text; repeated searches take linear time altogether."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: dict[str, int] = {}

    def find(self, word: str, at: int) -> int:
        """Return the next place of `word` from `at` on, or the length of the text. `at` only grows."""
        place = self._known.get(word, -1)
        if place < at:
            place = self._text.find(word, at)
            self._known[word] = place = len(self._text) if place < 0 else place
        return place


class _Rewriter:
    """Makes Markdown harmless."""

    def __init__(self, markdown: str, *, furniture: bool, latex: bool, html: bool) -> None:
        self._markdown = markdown
        self._furniture = furniture
        self._latex = latex
        self._html = html
        self._writer = _Writer()
        self._complete = True
        self._tables = deque[tuple[int, int]]()
        """Where the rest of the text may have tables."""

    def run(self) -> Harmless:
        for kind, text in _fenced(self._markdown):
            if kind == "text":
                self._text(dollars(text) if self._latex else text)
            else:
                self._writer.code(text)
            self._complete = self._complete and kind != "open"
        return Harmless(self._writer.close(), self._writer.found, self._complete)

    def _text(self, text: str) -> None:
        lowered = text.lower() if "<" in text else text
        lowered = lowered if len(lowered) == len(text) else text  # some letters change their length
        following, tags = _Next(text), _Next(lowered)
        # Where tags are left out, any line may become the rule of a table.
        everywhere = self._html and "<" in text
        self._tables = deque([(0, len(text))] if everywhere else (match.span() for match in _ROWS.finditer(text)))
        at = 0
        while match := _SIGN.search(text, at):
            begin = match.start()
            self._writer.raw(text[at:begin])
            match match.lastgroup:
                case "ticks":
                    at = self._code(text, match, following)
                case "display":
                    at = self._formula(text, begin, following.find("$$", begin + 2) + 2)
                case "dollar":
                    at = self._dollar(text, begin, following)
                case "tag":
                    at = self._tag(text, begin, tags)
                case "picture":
                    at = self._picture(text, begin)
                case "link":
                    at = self._link(text, begin)
                case "definition":
                    allowed = _ADDRESS.match(text, match.end())
                    self._writer.raw("]:" if allowed else "]\\:")
                    at = match.end()
                case "fence":
                    self._writer.raw("\\~" * len(match[0]))
                    at = match.end()
                case _:  # between lines of HTML a backslash escapes nothing
                    self._writer.raw("&lt;" if match[0] == "\\<" and self._html else match[0])
                    at = match.end()
        self._writer.raw(text[at:])

    def _code(self, text: str, match: re.Match[str], following: _Next) -> int:
        """Write a span of code within a line. A reader splits a row of a table first, so `|` may end the code there."""
        ticks = match[0]
        line_end = following.find("\n", match.end())
        end = match.end()
        while (end := text.find(ticks, end, line_end)) >= 0:
            run = _TICKS.match(text, end)
            assert run is not None
            if run[0] == ticks and (text[end - 1] != "`"):
                span = text[match.start() : run.end()]
                cut = _SPLITS.search(span) and self._in_table(match.start())
                self._writer.raw(tables.literal(span.strip("`").strip()) if cut else span)
                return run.end()
            end = run.end()
        self._writer.raw("\\`" * len(ticks))
        return match.end()

    def _in_table(self, at: int) -> bool:
        """Whether this place may lie in a Markdown table. `at` only grows."""
        while self._tables and self._tables[0][1] < at:
            self._tables.popleft()
        return bool(self._tables) and self._tables[0][0] <= at

    def _formula(self, text: str, begin: int, end: int) -> int:
        """Write a formula that ends at `end`; only its sign if that is beyond the text or below a blank line."""
        sign = "$$" if text.startswith("$$", begin) else "$"
        inner = text[begin + len(sign) : end - len(sign)]
        linked = not self._latex and "](" in inner  # signs of money around a link
        if end > len(text) or not inner.strip() or "\n\n" in inner or "`" in inner or linked:
            self._writer.raw(sign)
            return begin + len(sign)
        self._writer.raw(sign + (apart(inner) if sign == "$$" else apart(inner.strip())) + sign)
        return end

    def _dollar(self, text: str, begin: int, following: _Next) -> int:
        """Write a formula within a line, or a sign of money."""
        end = following.find("$", begin + 1)
        inner = text[begin + 1 : end]
        closed = end < len(text) and "\n" not in inner and inner.strip() != "" and text[end - 1] != "\\"
        spaced = inner[:1].isspace() == inner[-1:].isspace()
        if closed and spaced and not text[end + 1 : end + 2].isdigit():
            return self._formula(text, begin, end + 1)
        self._writer.raw("$")
        return begin + 1

    def _picture(self, text: str, begin: int) -> int:
        """Write the description of a picture in place of the picture."""
        picture = _PICTURE.match(text, begin)
        if picture is None:
            self._writer.raw("!\\[")
            return begin + 2
        self._writer.raw(_TAG_LIKE.sub("&lt;", _SPACES.sub(" ", picture[1])).replace("`", "&#96;").rstrip("\\"))
        return picture.end()

    def _link(self, text: str, begin: int) -> int:
        """Write the end of a link's text; without its address if that leads to a script, a file or the like."""
        if _ADDRESS.match(text, begin + 1):
            self._writer.raw("](")
            return begin + 2
        elsewhere = _ELSEWHERE.match(text, begin + 1)
        self._writer.raw("]" if elsewhere else "]\\(")
        return elsewhere.end() if elsewhere else begin + len("](")

    def _tag(self, text: str, begin: int, tags: _Next) -> int:
        """Write a tag as Markdown, as itself or as text, and return where to go on."""
        if self._html and text.startswith("<!--", begin) and (end := tags.find("-->", begin)) < len(text):
            return end + len("-->")
        if link := _AUTOLINK.match(text, begin):
            self._writer.raw(link[0])
            return link.end()
        found = TAG.match(text, begin)
        name = found["name"].lower() if found else ""
        known = name in _MARKS or name in _BLOCKS or name in _INLINE or _HEADING.fullmatch(name)
        if found is None or not (name in _KEPT or name == "br" or (known and self._html)):
            self._writer.raw("&lt;" if self._html else "\\<")
            return begin + 1
        closing, end = bool(found["end"]), found.end()
        if name == "table" and not closing:
            return self._table(text, begin, end, tags)
        if not closing and (name in _SILENT or (name == "page_number" and not self._furniture)):
            place = tags.find(f"</{name}", end)
            return place if place < len(text) else end
        self._writer.tag(Tag(name, closing, found["attributes"]), html=False)
        return end

    def _table(self, text: str, begin: int, end: int, tags: _Next) -> int:
        """Write the table that begins here, with the tables inside it."""
        while True:
            place = tags.find("</table", end)
            inner = tags.find("<table", end)
            if inner > place or inner == len(text):
                break
            end = place + 1
        if place == len(text):
            self._complete = False
        close = text.find(">", place, place + 20)
        end = close + 1 if close >= 0 else len(text) if place == len(text) else place + len("</table")
        self._writer.tables(text[begin:end])
        return end


def _fenced(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of Markdown in turn: ("text" or "code", the part); "open": a block of code without its end, which
    it gets."""
    lines = markdown.split("\n")
    ends = _fence_ends(lines)
    start = number = searched = 0
    while number < len(lines):
        end, closing = ends[number]
        if not end and number >= searched:
            end, closing = _contained_end(lines, number)
            end, searched = max(0, end), max(searched, -end)
        if end:
            if start < number:
                yield "text", "\n".join(lines[start:number]) + "\n"
            code = [*lines[number:end], closing] if closing else lines[number:end]
            yield "open" if closing else "code", "\n".join(code) + "\n"
            start = number = end
        else:
            number += 1
    if start < len(lines):
        yield "text", "\n".join(lines[start:])


def _fence_ends(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Return for each line (the number of the line below the block of code that begins in it, the missing fence); 0:
    none begins. Blocks that are indented may belong to lists: see `_contained_end`."""
    count = len(lines)
    ends = [(0, "")] * count
    # The fences below a line that can close a block, as (-length, line): of each length only the nearest.
    closing: dict[str, list[tuple[int, int]]] = {"`": [], "~": []}
    for number in range(count - 1, -1, -1):
        line = lines[number]
        if fence := _FENCE.match(line):
            fences = closing[fence[1][0]]
            nearest = bisect(fences, (-len(fence[1]), count)) - 1
            ends[number] = (fences[nearest][1] + 1, "") if nearest >= 0 else (count, fence[1])
        text = line.lstrip(" ").rstrip(" \t")
        if text[:1] in closing and text == text[0] * len(text) and not line.startswith("    "):
            fences = closing[text[0]]
            while fences and -fences[-1][0] <= len(text):
                fences.pop()
            fences.append((-len(text), number))
    return ends


def _contained_end(lines: list[str], number: int) -> tuple[int, str]:
    """As an entry of `_fence_ends`, for a block in quotes and lists: all of its lines begin like the first one, so that
    they stay in whatever contains it. Negative: the number of a line above which no such block ends."""
    match = _CONTAINED.match(lines[number])
    if match is None or (match["marker"] and len(match["indent"]) > 3):
        return 0, ""
    prefix, fence = match["prefix"] + " " * len(match["marker"] or ""), match["fence"]
    for end in range(number + 1, len(lines)):
        line = lines[end]
        text = line.removeprefix(prefix).strip()
        if len(text) >= len(fence) and text == fence[0] * len(text):
            return (end + 1, "") if line.rstrip(" \t") == prefix + text else (-end, "")
        if not line.startswith(prefix) and line.strip(" \t") != prefix.strip():
            return -end, ""
    return len(lines), prefix + fence
