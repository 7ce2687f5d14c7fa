"""Turn Markdown from strangers and models into harmless HTML."""

import re
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pipeline.reading.sandbox.limits import refused

_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
_WRITTEN = re.compile(r"</?(?:sub|sup|mark)>|<br ?/?>")
"""HTML that our own conversion and models write in Markdown, besides tables, whose cells may be merged."""
_PICTURE = re.compile(r"pictures/([A-Za-z0-9][A-Za-z0-9._-]{0,99})")
_TAGS = {
    "a",
    "blockquote",
    "br",
    "code",
    "dd",
    "del",
    "dl",
    "dt",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "img",
    "li",
    "mark",
    "ol",
    "p",
    "pre",
    "s",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
}
_ATTRIBUTES = {
    "a": {"href"},
    "img": {"alt", "title"},
    "ol": {"start"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
}
_MOST = 1_000_000
"""The most characters of HTML: a table of a few lines may have tens of thousands of cells."""


def harmless(parts: Sequence[str], pictures: str = "") -> list[str]:
    """Return each Markdown text as harmless HTML. `pictures`: the address of the folder with the pictures of these
    texts; empty: show none.

    Links may use HTTP and mailto, and carry `rel="noopener noreferrer nofollow"`. Any other picture becomes its
    description. Raises `UnitError` with code `too_large`. The caller bounds the time: run it in a `child`.
    """
    results: list[str] = []
    remaining = _MOST
    for part in parts:
        results.append(_harmless(part, pictures))
        remaining -= len(results[-1])
        if remaining < 0:
            raise refused(f"The text becomes more than {_MOST:,} characters of HTML.", "too_large")
    return results


def _harmless(text: str, pictures: str) -> str:
    def picture(link: str) -> str | None:
        name = _PICTURE.fullmatch(link) if pictures else None
        return f"{pictures}/{quote(name[1])}" if name else None

    def attribute(tag: str, name: str, value: str) -> str | None:
        if tag == "img" and name == "src":
            return picture(value)
        if tag == "a" and name == "href":
            return value if _may_lead_there(value) else None
        return value

    tokens = _MARKDOWN.parse(text)
    _take_for_text(tokens, picture)
    return nh3.clean(
        _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}),
        tags=_TAGS,
        attributes={**_ATTRIBUTES, "img": _ATTRIBUTES["img"] | {"src"}},
        attribute_filter=attribute,
        set_tag_attribute_values={"table": {"tabindex": "0"}},  # lets the keyboard scroll a wide table
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


def _may_lead_there(address: str) -> bool:
    try:
        return address.startswith("#") or urlsplit(address).scheme in {"http", "https", "mailto"}
    except ValueError:
        return False


def _take_for_text(tokens: Sequence[Token], picture: Callable[[str], str | None]) -> None:
    """Turn tokens of HTML into text, except tables and raised letters, and pictures of other sites into their
    descriptions."""
    for token in tokens:
        table = token.type == "html_block" and token.content.lstrip().lower().startswith("<table")
        if not table and token.type in {"html_block", "html_inline"} and not _WRITTEN.fullmatch(token.content.strip()):
            token.type = "text"
        if token.type == "image" and picture(str(token.attrs.get("src", ""))) is None:
            token.type, token.children = "text", None
        _take_for_text(token.children or (), picture)
