"""LaTeX in a model's text: one kind of delimiter, `$` in a line and `$$` for formulas of their own."""

import re

_INLINE = re.compile(r"(?<!\\)\\\(([^\\]*+(?:\\(?![()\[\]])[^\\]*+)*+)\\\)")
_DISPLAY = re.compile(r"(?<!\\)\\\[([^\\]*+(?:\\(?![()\[\]])[^\\]*+)*+)\\\]")
_ESCAPED = re.compile(r"\\\$([^$\n\\]*+(?:\\[^$\n][^$\n\\]*+)*+)\\\$")
_LATEX = re.compile(r"[\\^_={}]")
_WORDS = re.compile(r"[0-9 ,;–-]++|[^\W\d_]{3,}+(?: [^\W\d_]++){0,6}+")
"""What stands between escaped brackets: `\\[1, 2\\]`, `\\[illegible\\]`."""
_TAG_LIKE = re.compile(r"<(?=[a-zA-Z/!?])")


def dollars(text: str) -> str:
    r"""Return the text with `$` for `\(` and `\)`, and `$$` for `\[` and `\]`."""
    if "\\(" in text:
        text = _INLINE.sub(lambda match: f"${apart(match[1].strip())}$" if match[1].strip() else "", text)
    if "\\[" in text:
        text = _DISPLAY.sub(_display, text)
    if "\\$" in text:  # LightOnOCR escapes the signs of some formulas
        text = _ESCAPED.sub(lambda match: f"${apart(match[1].strip())}$" if _LATEX.search(match[1]) else match[0], text)
    return text


def _display(match: re.Match[str]) -> str:
    inner = match[1]
    if _WORDS.fullmatch(inner):
        return match[0]
    return f"$${apart(inner.strip())}$$" if inner.strip() else ""


def formula(text: str) -> str:
    """Return bare or delimited LaTeX as a formula of its own; empty without LaTeX."""
    text = text.strip()
    for begin, end in (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$")):
        if len(text) >= len(begin) + len(end) and text.startswith(begin) and text.endswith(end):
            text = text[len(begin) : -len(end)].strip()
            break
    lines = [line for line in text.split("\n") if line.strip()]  # a blank line would end the formula
    return "$$" + apart("\n".join(lines)).replace("$$", "") + "$$" if lines else ""


def apart(latex: str) -> str:
    """Return LaTeX in which nothing looks like a tag, picture or link to a reader of Markdown without formulas."""
    return _TAG_LIKE.sub("< ", latex).replace("![", "! [").replace("](", "] (").replace("]:", "] :")
