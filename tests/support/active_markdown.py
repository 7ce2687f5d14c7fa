"""What is active in Markdown, and texts that try to be."""

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
_WRITTEN = re.compile(r'</?(?:sub|sup|mark|table|tr|t[dh])(?: (?:row|col)span="\d+")*>|<br>')
_TAG = re.compile(r"<[a-zA-Z/!?].{0,20}")
_LINK = re.compile(r"(?:https?://|mailto:|#|\Z)", re.IGNORECASE)


def active(markdown: str) -> list[str]:
    """Return the pictures, tags and links that a Markdown reader with HTML would show, except harmless ones."""
    found: list[str] = []

    def walk(tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.type in {"html_block", "html_inline"}:
                found.extend(_TAG.findall(_WRITTEN.sub("", token.content)))
            elif token.type == "image":
                found.append(str(token.attrs["src"]))
            elif token.type == "link_open" and not _LINK.match(str(token.attrs["href"])):
                found.append(str(token.attrs["href"]))
            walk(token.children or ())

    walk(_MARKDOWN.parse(markdown))
    return found


ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><p>x</p></svg>",
    "<iframe src=//example.org></iframe>",
    "<x-a onclick=alert(1)>x</x-a>",
    "<scr<b>ipt>alert(1)</scr</b>ipt>",
    "<sub>\n<x onload=alert(1)>\n</sub>",
    "<a href=javascript:alert(1)>x</a>",
    "[x](javascript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[a [b]](data:text/html,x)",
    "[x]\n\n[x]: javascript:alert(1)",
    "> [x]\n\n> [x]: javascript:alert(1)",
    "[x\ny]: javascript:alert(1)\n\n[x\ny]",
    "<javascript:alert(1)>",
    "![x](https://example.org/pixel.png)",
    "![x][y]\n\n[y]: https://example.org/pixel.png",
    "![a [b](c)](https://example.org/pixel.png)",
    "- a\n  ```\n<script src=x></script>\n  ```",
    "`a\n# <x onload=1>`",
    "| `a | <x onload=1>` |\n|---|---|\n| `b | <x onload=1>` |",
    "$a\n<x onload=1>$",
    "$<x onload=1>$",
    "\\(<x onload=1>\\)",
    "<table><tr><td onclick=x><img src=x onerror=y>z</td></tr></table>",
    "<table><tr><td>&lt;script&gt;alert(1)&lt;/script&gt;</td></tr></table>",
    "<!-- --><script>x</script>",
    "<!-- a",
    "<?php x ?>",
    "\\<script>alert(1)</script>",
    "![\\](x)<script>alert(1)</script>",
    "<b>![</b>x](https://example.org/a.png)",
    "[<b>x</b>](javascript:alert(1))",
    "[x]<b></b>(javascript:alert(1))",
    "[x](javascript:alert(1))(javascript:alert(1))",
    "!<b></b>[x](https://example.org/a.png)",
    "<<b></b>script src=x>",
    "`<b></b>``<x onload=1>``",
    "`<x onload=1>`<b></b>``b``",
    "<sub>\n```\n<x onload=1>\n```",
    "<sub>\n`<x onload=1>`",
    "<br> <b></b>\n`<x onload=1>`",
    "<span>~~~\n~~~\n<x onload=1>\n~~~",
    "- ```\n  a\n  ```\n  <x onload=1>",
    "  ```\na\n```\n<x onload=1>\n```",
    "- a\n\n  ```\n```\n\n```\n<x onload=1>\n```",
    "- a\n\n  ```\n  <x>\n  ```\n<x onload=1>",
    "```\n\t```\n```\n<x onload=1>",
    "```\n```\u00a0\n```\n<x onload=1>\n```",
    "~~~ | `a | <x onload=1>` |\n|---|---|---|",
    "a | `b | <x onload=1>`\n![](x)|---|---",
    "a | b\n---|---\n`![ | ` [a](https://example.org/a.png)",
    "| a | b |\n|---|---|\n| `a | b` `<x onload=1>` |",
    "$`$ `<x onload=1>`",
    "![`](x)`<x onload=1>`",
]
"""Markdown and HTML that would be active if they were not made harmless."""
