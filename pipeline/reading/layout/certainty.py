"""The confidence of text recognition in blocks and words."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.reading.layout.model import Block, Runs, Table
from pipeline.reading.layout.text import CJK

DOUBTFUL = 0.93
"""Below this mean confidence, recognition of a picture is doubtful. At 200 dpi, clean and scanned pages have 0.97 to
0.99, screenshots with icons at least 0.95, noisy pages 0.85; a scan at 70 dpi, with errors in every other line, has
0.92, at 50 dpi 0.72. Korean, Cyrillic and Arabic, which the model does not know, have 0 to 0.8."""

UNCERTAIN = 0.75
"""A word's confidence is that of its least certain character; below this the word may be wrong. Of 92 words on a clean
page, none is below; on the same page blurred and noisy, seven are, four of them wrong, and one wrong word is not."""


GUESSED = 0.8
"""Below this mean confidence in the words of a block, its Markdown says so. Paragraphs of cursive fonts with an error
in every other word have 0.72 to 0.77, of handwriting read without errors 0.86 or more, of print 0.95 or more."""

_ENOUGH = 20  # characters to judge by


class Word(NamedTuple):
    """A word of a block and recognition's confidence in it."""

    text: str
    sure: float


def words(block: Block) -> list[Word]:
    """Return the recognised words of a block, in order; empty if its text was not recognised."""
    return [word for runs in _texts(block) for word in _words(runs)]


def facts(block: Block, text: str) -> dict[str, Any]:
    """Return a dict, ready for JSON, with the block's `confidence`, 0 to 1, and its `uncertain` words, if any, with
    their offsets in `text`, the block's text as data. Empty if its text was not recognised."""
    recognised = words(block)
    if not recognised:
        return {}
    uncertain = []
    at = 0
    for word in recognised:
        place = text.find(word.text, at)
        if place < 0:
            continue
        at = place + len(word.text)
        if word.sure < UNCERTAIN:
            uncertain.append({"text": word.text, "offset": place, "confidence": round(word.sure, 3)})
    return {"confidence": round(_mean(recognised), 3), **({"uncertain": uncertain} if uncertain else {})}


def is_guessed(block: Block) -> bool:
    """Whether recognition was unsure of most of the block's text, as with handwriting."""
    # A line of Chinese is one word, as sure as its least certain character.
    recognised = [word for word in words(block) if not CJK.search(word.text)]
    return sum(len(word.text) for word in recognised) >= _ENOUGH and _mean(recognised) < GUESSED


def _mean(recognised: Sequence[Word]) -> float:
    return sum(word.sure * len(word.text) for word in recognised) / sum(len(word.text) for word in recognised)


def uncertain_share(blocks: Iterable[Block]) -> float | None:
    """Return the share of uncertain words in the recognised text, by characters; None if nothing was recognised."""
    recognised = [word for block in blocks for word in words(block)]
    characters = sum(len(word.text) for word in recognised)
    return sum(len(word.text) for word in recognised if word.sure < UNCERTAIN) / characters if characters else None


def _texts(block: Block) -> Sequence[Runs]:
    if isinstance(block, Table):
        return [cell.runs for row in block.rows for cell in row]
    return [getattr(block, "runs", ())]


def _words(runs: Runs) -> Iterator[Word]:
    """Yield the words of a text; a word in several runs takes the least confidence of them."""
    text, sure = "", 1.0
    for run in runs:
        if run.style.sure is None:
            continue
        for part in re.findall(r"\S+|\s+", run.text):
            if not part.isspace():
                text, sure = text + part, min(sure, run.style.sure)
            elif text:
                yield Word(text, sure)
                text, sure = "", 1.0
    if text:
        yield Word(text, sure)
