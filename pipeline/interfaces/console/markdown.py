"""Markdown that strangers and models wrote, as HTML that can do nothing."""

import re
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
_WRITTEN = re.compile(r"</?(?:sub|sup|mark)>|<br ?/?>")
"""Of the HTML in Markdown, what our own conversion writes, and models do; besides tables, whose cells may be merged."""
_TAGS = {
    "a", "blockquote", "br", "code", "dd", "del", "dl", "dt", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img",
    "li", "mark", "ol", "p", "pre", "s", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {
    "a": {"href"},
    "img": {"alt", "title"},
    "ol": {"start"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
}
MAX_CHARACTERS = 400_000
"""Longer texts are cut: a page is never so long, and nobody reads on."""


def html(text: str, picture: Callable[[str], str | None] = lambda _: None) -> Markup:
    """The text as harmless HTML. `picture` gives the address of ours for what a picture links to; None: its words stay.

    Links lead to other sites only over HTTP, and say that they do; pictures of other sites are never loaded.
    """
    tokens = _MARKDOWN.parse(text[:MAX_CHARACTERS])
    _take_for_text(tokens, picture)
    rendered = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})

    def attribute(tag: str, name: str, value: str) -> str | None:
        if tag == "img" and name == "src":
            return picture(value)
        if tag == "a" and name == "href":
            return value if _may_lead_there(value) else None
        return value

    return Markup(  # noqa: S704  # what nh3 lets through
        nh3.clean(
            rendered,
            tags=_TAGS,
            attributes={**_ATTRIBUTES, "img": _ATTRIBUTES["img"] | {"src"}},
            attribute_filter=attribute,
            set_tag_attribute_values={"table": {"tabindex": "0"}},  # a wide one is scrolled, also by keys
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener noreferrer nofollow",
        )
    )


def _may_lead_there(address: str) -> bool:
    try:
        return address.startswith("#") or urlsplit(address).scheme in {"http", "https", "mailto"}
    except ValueError:
        return False


def _take_for_text(tokens: Sequence[Token], picture: Callable[[str], str | None]) -> None:
    """Let HTML be shown as it is written, except tables and raised letters; of pictures elsewhere, the words."""
    for token in tokens:
        table = token.type == "html_block" and token.content.lstrip().lower().startswith("<table")
        if not table and token.type in {"html_block", "html_inline"} and not _WRITTEN.fullmatch(token.content.strip()):
            token.type = "text"
        if token.type == "image" and picture(str(token.attrs.get("src", ""))) is None:
            token.type, token.children = "text", None
        _take_for_text(token.children or (), picture)
