"""How sure text recognition is of blocks and of the words in them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.reading.layout.model import Block, Runs, Table

DOUBTFUL = 0.93
"""Below this, recognition was not sure of a picture. Measured at 200 dpi: clean and scanned pages 0.97 to 0.99,
pictures of screens with their icons 0.95 and more; a scan at 70 dpi, with an error in every other line,
0.92, at 50 dpi 0.72, under heavy noise 0.85; Korean, Cyrillic and Arabic, which it does not know, 0 to 0.8."""

UNCERTAIN = 0.75
"""A word is as sure as its least sure character; one below this may be wrong. Of 92 words on a clean page, none is;
on the same page blurred and noisy seven are, of which four are wrong, and one wrong word is not."""


class Word(NamedTuple):
    """A word of a block and how sure recognition is of it."""

    text: str
    sure: float


def words(block: Block) -> list[Word]:
    """The recognised words of a block, in its order; none if its text was not recognised."""
    return [word for runs in _texts(block) for word in _words(runs)]


def facts(block: Block, text: str) -> dict[str, Any]:
    """What a block says of itself, whose text as data is `text`: `confidence`, and its `uncertain` words with their
    places in the text. Nothing if it was not recognised."""
    found = words(block)
    if not found:
        return {}
    uncertain = []
    at = 0
    for word in found:
        place = text.find(word.text, at)
        if place < 0:
            continue
        at = place + len(word.text)
        if word.sure < UNCERTAIN:
            uncertain.append({"text": word.text, "offset": place, "confidence": round(word.sure, 3)})
    sure = sum(word.sure * len(word.text) for word in found) / sum(len(word.text) for word in found)
    return {"confidence": round(sure, 3), **({"uncertain": uncertain} if uncertain else {})}


def uncertain_share(blocks: Iterable[Block]) -> float | None:
    """The share of the recognised text that is uncertain words, by characters; None if nothing was recognised."""
    found = [word for block in blocks for word in words(block)]
    characters = sum(len(word.text) for word in found)
    return sum(len(word.text) for word in found if word.sure < UNCERTAIN) / characters if characters else None


def _texts(block: Block) -> Sequence[Runs]:
    if isinstance(block, Table):
        return [cell.runs for row in block.rows for cell in row]
    return [getattr(block, "runs", ())]


def _words(runs: Runs) -> Iterator[Word]:
    """The words of a text; one that is set in several runs is as sure as the least sure of them."""
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
