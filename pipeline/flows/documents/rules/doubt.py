"""Decides whether text recognition did so poorly that a person should compare the page with its text."""

from collections.abc import Sequence

from pipeline.reading.layout.certainty import DOUBTFUL

ILLEGIBLE = "[illegible]"
"""The prompt asks models to write this for an illegible word."""


UNCERTAIN = 0.5
"""From this share of uncertain words on, a page is hardly text: handwriting, noise, or a
script unknown to recognition. Clean pages have 0 to 0.02, a blurred one with an error in every third line 0.1."""

GARBLED = 2
"""A page with this many senseless words has an illegible part, however clean the rest is. Of
43 clean pages (books, forms, tables, program code, screens; English, German, French) two have one, and none has two; of
16 forms with one to eight fields that are printed over, 15 have two or more."""


def is_uncertain(share: float | None) -> bool:
    """Whether most of a page's recognised text may be wrong: `share`, of uncertain words, is known and at least
    `UNCERTAIN`."""
    return share is not None and share >= UNCERTAIN


def is_garbled(words: Sequence[str]) -> bool:
    """Whether a page has too many senseless `words`; a single one may be a rare name or an icon."""
    return len(words) >= GARBLED


def is_doubtful(text: str, confidence: float | None, share: float | None = None, garbled: Sequence[str] = ()) -> bool:
    """Whether to doubt a page: see `doubt`."""
    return bool(doubt(text, confidence, share, garbled))


def doubt(text: str, confidence: float | None, share: float | None = None, garbled: Sequence[str] = ()) -> str:
    """Return why to doubt a page, in words; empty if its text seems right.

    Its `confidence` (0 to 1) is low, the model marked a word as illegible, the `share` of uncertain words is high, or
    too many `garbled` words make no sense.
    """
    reasons = []
    if confidence is not None and confidence < DOUBTFUL:
        reasons.append(f"recognition is {confidence:.0%} sure")
    if share is not None and is_uncertain(share):
        reasons.append(f"{share:.0%} of the words are uncertain")
    if is_garbled(garbled):
        reasons.append(f"{len(garbled)} words make no sense")
    if ILLEGIBLE in text:
        reasons.append("words are illegible")
    return ", ".join(reasons)
