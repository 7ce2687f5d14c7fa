"""Extract text from files and web pages. Runs in a child process, since libraries may hang, crash or fill memory."""

import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.engine.errors import UnitError
from pipeline.reading.files.filetype import detect_file
from pipeline.reading.ocr import images, recognition
from pipeline.reading.pdf import conversion, pdfium
from pipeline.reading.pdf.pages import Options
from pipeline.reading.replies import markup
from pipeline.reading.sandbox.limits import Limits, Progress, check_characters, refused
from pipeline.reading.text import charset, office
from pipeline.reading.text.content_type import DECODED, MARKUP, PAGED, Kind, kind_of
from pipeline.reading.text.sections import Reading, Section

_PASSWORD = ("encrypted", "password")
_LEAST_SHARE = 0.02
_NAVIGATION = frozenset({"navigation", "search"})
_HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
_BESIDE = frozenset({"header", "footer", "aside"})
_AROUND = _HEADINGS | _BESIDE
_MENU_SHARE = 0.9
_MAX_JUMP = 40
_PERMALINK = " \t\n#¶§¤🔗\N{NO-BREAK SPACE}\N{ZERO WIDTH SPACE}\N{VARIATION SELECTOR-16}"
"""The characters of a heading's link to itself."""


def extract_file(path: Path, filename: str, limits: Limits, progress: Progress) -> Reading:
    """Return the text of a file of any accepted kind, read in this process, so run it in a child. Leaves out the menus
    of web pages. Raises `UnitError` (permanent), `OSError`, `MemoryError` or `RecursionError`."""
    kind = kind_of(path, filename, limits)
    if kind in {Kind.PDF, Kind.PICTURE}:
        return _paged(path, filename, limits, progress)
    data = path.read_bytes()
    if kind == Kind.HTML:
        _check_markup(len(data), filename, limits)
        data = _without_navigation(office.html_text(data, filename)).encode()
    reading = read_text(kind, data, filename, limits)
    return replace(reading, sections=[section for section in reading.sections if section.text.strip()])


def read_text(kind: Kind, data: bytes, filename: str, limits: Limits) -> Reading:
    """Return the whole text of a file of a kind other than PDF and picture: a section for each slide, sheet and
    chapter, perhaps an empty one. Raises as `extract_file`."""
    if kind in MARKUP:
        _check_markup(len(data), filename, limits)
    if kind in DECODED:
        return Reading("", [Section(charset.decode(data, filename), plain=kind == Kind.PLAIN)])
    return _converted(kind, data, filename)


def extract_page(path: Path, url: str, declared: str, limits: Limits) -> Reading:
    """Return the main text of a web page as Markdown, and its title, from the HTML file at `path`. `declared`: the
    encoding named by the server, or empty.

    Returns all of the page's text if no part of it stands out.
    """
    data = path.read_bytes()
    _check_markup(len(data), url, limits)
    html = charset.decode(data, url, declared or office.declared_encoding(data))
    import trafilatura  # noqa: PLC0415  (only pages need it)

    text = trafilatura.extract(
        html,
        url=url,
        output_format="markdown",
        include_comments=False,
        include_tables=True,
        include_links=False,
        with_metadata=False,
    )
    facts = trafilatura.extract_metadata(html, default_url=url)
    whole = (
        _converted(Kind.HTML, _without_navigation(html).encode(), url)
        if not text or len(text) < _LEAST_SHARE * len(html)
        else None
    )
    title = (facts.title if facts and facts.title else "") or (whole.title if whole else "")
    if text:
        return Reading(" ".join(title.split()), [Section(harmless(text, Kind.HTML), source=url)])
    sections = [Section(section.text, source=url) for section in whole.sections] if whole else []
    return Reading(" ".join(title.split()), sections)


def _check_markup(size: int, name: str, limits: Limits) -> None:
    if size > limits.max_markup_bytes:
        message = (
            f"{name} has {size / 1e6:,.0f} MB of markup, more than the accepted {limits.max_markup_bytes / 1e6:,.0f}"
        )
        raise refused(f"{message} MB; split it.", "too_large")


def _converted(kind: Kind, data: bytes, filename: str) -> Reading:
    """Convert an office file, a feed and so on to Markdown, a section for each slide, sheet and chapter.

    XML that only looks like a feed stays unchanged. Raises `UnitError` (permanent) with code `encrypted` or `corrupt`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            title, texts = office.convert(kind, data, filename)
    except (MemoryError, RecursionError, UnitError):
        raise
    except Exception as error:  # whatever a dozen libraries raise for damaged files
        if kind == Kind.FEED:  # XML that only looks like a feed
            return Reading("", [Section(office.html_text(data, filename), plain=True)])
        if any(word in f"{type(error).__name__} {error}".lower() for word in _PASSWORD):
            message = f"{filename} needs a password; save a copy without one and add that."
            raise refused(message, "encrypted") from error
        message = f"{filename} is damaged, or not a valid {kind} file: {type(error).__name__}"
        raise refused(f"{message}; export or download it again.", "corrupt") from error
    texts = [harmless(text, kind) for text in texts]
    sections = [Section(text, page=page if kind in PAGED else None) for page, text in enumerate(texts, 1)]
    return Reading(" ".join(title.split()), sections)


def harmless(text: str, kind: Kind) -> str:
    """Return the Markdown of a converted file, in which nothing is active: no HTML, no link to a script or a file, no
    picture."""
    text = text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")
    return markup.harmless(text, latex=False, html=kind == Kind.NOTEBOOK).text


def _without_navigation(html: str) -> str:
    """Return the HTML without menus, lists of contents, and the links of headings to themselves; unchanged if little
    text would remain."""
    from bs4 import Tag  # noqa: PLC0415  (markitdown loads it as well)

    from pipeline.reading.text.hypertext import Page  # noqa: PLC0415

    page = Page(html)
    nodes = list(page.descendants)
    # Each pass visits a node once, at any depth: hostile files nest thousands of lists.
    within: dict[int, frozenset[str]] = {id(page): frozenset()}
    has_body = any(isinstance(node, Tag) and _is_body(node) for node in nodes)
    for node in nodes:
        if isinstance(node, Tag):
            around = within[id(node.parent)]
            within[id(node)] = around | {"body"} if _is_body(node) else around | (_AROUND & {node.name})
    links, removed, menus = _links_within(nodes), set[int](), []
    for node in nodes:
        if isinstance(node, Tag) and id(node.parent) not in removed:
            around, text = within[id(node)], links[id(node)]
            beside = bool(around & _BESIDE) or (has_body and "body" not in around)
            is_menu = node.name in {"ul", "ol"} and text.is_menu and (beside or text.all_inside)
            is_marked = node.name == "nav" or node.get("role") in _NAVIGATION
            if is_menu or is_marked or _is_jump(node, text, around):
                menus.append(node)
        if id(node.parent) in removed or (menus and menus[-1] is node):
            removed.add(id(node))
    for menu in menus:
        menu.decompose()
    # If a page is only a menu, keep the menu.
    whole = links[id(page)].characters
    remaining = str(page)
    return remaining if len(page.get_text().strip()) >= _LEAST_SHARE * whole else html


def _is_body(node: Any) -> bool:
    return node.name in {"main", "article"} or node.get("role") == "main"


def _is_jump(node: Any, inner: "_Links", around: frozenset[str]) -> bool:
    """Whether a link leads from a heading to itself, or past the menus."""
    if node.name != "a" or inner.characters > _MAX_JUMP:
        return False
    text = node.get_text().strip(_PERMALINK)
    if around & _HEADINGS:
        return not text and node.find("img") is None
    return str(node.get("href", "")).startswith("#") and text.startswith(("Skip to", "Jump to"))


@dataclass
class _Links:
    """The characters of a part of a page, and how many of them belong to links."""

    characters: int = 0
    linked: int = 0
    links: int = 0
    all_inside: bool = True
    """Whether all links lead to places in the same page."""

    @property
    def is_menu(self) -> bool:
        return self.links > 0 and self.linked >= _MENU_SHARE * self.characters


def _links_within(nodes: list[Any]) -> dict[int, _Links]:
    """Return the characters and links in each node and in their common parent. `nodes` are in the order of the page."""
    totals: defaultdict[int, _Links] = defaultdict(_Links)
    for node in reversed(nodes):  # so each node comes after its descendants
        own = totals[id(node)]
        if node.name is None:
            own.characters = len(node.strip())
        elif node.name == "a":
            inside = str(node.get("href", "")).startswith("#")
            own.linked, own.links, own.all_inside = own.characters, own.links + 1, own.all_inside and inside
        outer = totals[id(node.parent)]
        outer.characters += own.characters
        outer.linked += own.linked
        outer.links += own.links
        outer.all_inside &= own.all_inside
    return totals


def _paged(path: Path, filename: str, limits: Limits, progress: Progress) -> Reading:
    """Read the pages of a PDF or picture: from a trustworthy text layer, otherwise by text recognition.

    Pages that cannot be read become warnings. Raises `UnitError` if the file cannot be opened or has too many
    pages, or if no page can be read.
    """
    options = Options(
        dpi=limits.ocr_dpi,
        pictures=limits.ocr_pictures,
        max_pixels=recognition.pixels_at(limits.ocr_dpi),
        threads=limits.ocr_threads,
        page_s=limits.page_s,
        layout=limits.layout,
    )
    try:
        count = _count_pages(path)
        if count > limits.max_pages:
            message = f"{filename} has {count:,} pages, more than the accepted {limits.max_pages:,}; split it."
            raise refused(message, "too_large")
        sections, warned = [], []
        survey = conversion.survey(path, range(1, count + 1), options, lambda: None)
        with conversion.open_source(path, options, survey) as source:
            for number, text, warning in _pages(source, count, filename, limits):
                progress(number / count)
                sections += [Section(text, page=number)] if text else []
                warned += [warning] if warning else []
    except UnitError as error:
        raise UnitError(str(error).replace(path.name, filename), kind=error.kind, code=error.code) from error
    if len(warned) == count:
        raise refused(f"No page of {filename} could be read. {warned[0]}", "unreadable")
    return Reading("", sections, warned)


def _pages(source: conversion.PageSource, count: int, name: str, limits: Limits) -> Iterator[tuple[int, str, str]]:
    """Yield (page number, its text, its error message); either text is empty."""
    characters = 0
    for number in range(1, count + 1):
        try:
            text, warning = source.convert(number).text.strip(), ""
        except UnitError as error:
            text, warning = "", str(error)
        characters += len(text)
        check_characters(characters, name, limits)
        yield number, text, warning


def _count_pages(path: Path) -> int:
    if detect_file(path) == "pdf":
        with pdfium.open_document(path) as document:
            return document.pages
    count = 0
    with images.open_picture(path) as picture:
        while count < 10_000 and images.seek_frame(picture, count + 1, path):
            count += 1
    return count
