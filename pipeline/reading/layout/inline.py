"""Write styled text as Markdown: emphasis, links, raised figures, and escapes."""

import re
from itertools import groupby

from pipeline.engine.control_characters import printable_line
from pipeline.reading.layout import notation
from pipeline.reading.layout.model import PLAIN, Run, Runs, Style, plain
from pipeline.reading.layout.text import clean

_SPECIAL = re.compile(
    r"\\(?=[!-/:-@\[-`{-~])"  # a backslash before a character that it would escape
    r"|\*(?=\S)|(?<=\S)\*"
    r"|(?<!\w)_(?=\S)|(?<=\S)_(?!\w)"
    r"|`|~~|<(?=[A-Za-z/!?])|\](?=[(\[:])|&(?=#?\w+;)"
)
_SIGN = re.compile(r"[\\*_`~<\]&]")
"""Characters of which every match of `_SPECIAL` has one; finding none takes a tenth of the time."""

_LINE_START = re.compile(r"(?=#{1,6}(?:\s|$)|>|[-+*](?:\s|$)|(?:-\s*){3,}$|(?:_\s*){3,}$|={2,}$|\|)")
_OPENING = " \u00a0,.;:)]}·"
_LOOSE_ENDS = " \u00a0,;([{·"
_NUMBERED_START = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")


def escaped(text: str) -> str:
    """Return the text with a backslash before every character that Markdown would interpret."""
    return _SPECIAL.sub(lambda match: "\\" + match.group(), text) if _SIGN.search(text) else text


def literal(words: str) -> str:
    """Return a stranger's words as one line of Markdown that displays them as text, without links or markup."""
    return escaped(printable_line(" ".join(words.split())))


def at_line_start(markdown: str) -> str:
    """Return the Markdown, escaped if its start would make it a heading, list, quote, rule or table."""
    if _LINE_START.match(markdown):
        return f"\\{markdown}"
    return _NUMBERED_START.sub(r"\1\\\2", markdown, count=1)


def to_markdown(runs: Runs, *, emphasis: bool = True) -> str:
    """Return one line of Markdown, with short formulas as LaTeX. Without `emphasis`, leave out bold: headings are bold
    as a whole."""
    words = [run for run in runs if any(map(str.isalnum, run.text))]
    dominant = Style(  # A style of the whole line needs no mark.
        bold=bool(words) and all(run.style.bold for run in words),
        italic=bool(words) and all(run.style.italic for run in words),
        mono=bool(words) and all(run.style.mono for run in words),
    )
    found = list(notation.parts(runs))
    parts = []
    for part in found:
        if isinstance(part, str):
            parts.append(part)
            continue
        shown = [Run(run.text, _shown(run, dominant, emphasis=emphasis)) for run in part]
        for link, linked in groupby(shown, key=lambda run: run.style.link):
            text = "".join(
                _styled("".join(run.text for run in same), style)
                for style, same in groupby(linked, key=lambda run: run.style)
            )
            text = text.replace("$", "\\$") if len(found) > 1 else text
            parts.append(_linked(text, link) if link else text)
    return clean("".join(parts))


def _shown(run: Run, dominant: Style, *, emphasis: bool) -> Style:
    """Return the part of the style that Markdown can show."""
    style = run.style
    if style.shift:
        return Style(shift=style.shift, link=style.link)
    if not any(map(str.isalpha, run.text)) and not style.bold:
        return PLAIN._replace(link=style.link)  # Symbols are often set in an italic font.
    mono = style.mono and not dominant.mono and "`" not in run.text
    return Style(
        bold=style.bold and emphasis and not mono,
        italic=style.italic and not mono and (emphasis or not dominant.italic),
        mono=mono,
        link=style.link,
    )


def _styled(text: str, style: Style) -> str:
    inner = text.strip()
    if not inner:
        return text
    if not style.shift and not style.mono:
        # Put marks around words: commas and brackets at the ends often have the style by accident.
        inner = text.lstrip(_OPENING).rstrip(_LOOSE_ENDS)
        if not inner:
            return escaped(text)
    start = text.index(inner)
    before, after = escaped(text[:start]), escaped(text[start + len(inner) :])
    if style.mono:
        return f"{before}`{inner}`{after}"
    marked = escaped(inner)
    if style.shift:
        tag = "sup" if style.shift > 0 else "sub"
        return f"{before}<{tag}>{marked}</{tag}>{after}"
    mark = "*" * (2 * style.bold + style.italic)
    return f"{before}{mark}{marked}{mark}{after}"


def _linked(text: str, link: str) -> str:
    inner = text.strip()
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    url = link.replace("(", "%28").replace(")", "%29").replace("<", "%3C").replace(">", "%3E")
    same = inner.rstrip(".,;").removeprefix("mailto:") == link.removeprefix("mailto:").rstrip("/")
    if not inner or same:
        return text  # An address in the text needs no link to itself.
    return f"{before}[{inner}]({url}){after}"


def plain_text(runs: Runs) -> str:
    """Return the text alone, with single spaces."""
    return clean(plain(runs))
