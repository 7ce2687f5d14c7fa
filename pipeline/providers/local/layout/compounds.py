"""Hyphens at the ends of lines that belong to their words, as the rest of the page shows."""

import re
from collections.abc import Sequence
from itertools import pairwise

from pipeline.providers.local.layout.model import HARD_HYPHEN, SOFT_HYPHEN, Line

_COMPOUND = re.compile(r"[^\W\d_]{2,30}-[^\W\d_]{2,30}")
_MAX_WORD = 80
_LAST = re.compile(rf"([^\W\d_]+)[{SOFT_HYPHEN}-]$")
_FIRST = re.compile(r"[^\W\d_]+")


def kept(lines: Sequence[Line]) -> list[Line]:
    """The lines with a hyphen that stays, where the page has the same two words with one in the middle of a line."""
    hyphenated = {word for line in lines if "-" in line.text for word in line.text.split() if "-" in word[1:-1]}
    known = {found.casefold() for word in hyphenated for found in _COMPOUND.findall(word[:_MAX_WORD])}
    if not known or len(lines) < 2:
        return list(lines)
    made = [_marked(line, after, known) for line, after in pairwise(lines)]
    return [*made, lines[-1]]


def _marked(line: Line, after: Line, known: set[str]) -> Line:
    last, first = _LAST.search(line.text[-_MAX_WORD:]), _FIRST.match(after.text[:_MAX_WORD])
    if not last or not first or f"{last.group(1)}-{first.group()}".casefold() not in known:
        return line
    spans = line.spans
    if spans:
        spans = (*spans[:-1], spans[-1]._replace(text=spans[-1].text[:-1] + HARD_HYPHEN))
    return line._replace(text=line.text[:-1] + HARD_HYPHEN, spans=spans)
