"""Whether a page's text was recognised so poorly that somebody should look at it."""

from collections.abc import Sequence

from pipeline.reading.layout.certainty import DOUBTFUL

ILLEGIBLE = "[illegible]"
"""What models are asked to write for a word that cannot be read."""


UNCERTAIN = 0.5
"""A page of whose text this share is words that recognition was unsure of is hardly text: handwriting, noise, or a
script that it does not know. Clean pages have 0 to 0.02, a blurred one with an error in every third line 0.1."""

GARBLED = 2
"""A page with so many words that make no sense has something on it that cannot be read, however clean the rest is. Of
43 clean pages (books, forms, tables, program code, screens; English, German, French) two have one, and none has two; of
16 forms with one to eight fields that are printed over, 15 have two or more."""


def is_uncertain(share: float | None) -> bool:
    """Whether most of a page's recognised text may be wrong; `share` of it is words that recognition was unsure of."""
    return share is not None and share >= UNCERTAIN


def is_garbled(words: Sequence[str]) -> bool:
    """Whether `words`, those of a page that make no sense, are too many: a single one may be a rare name or an icon."""
    return len(words) >= GARBLED


def is_doubtful(text: str, confidence: float | None, share: float | None = None, garbled: Sequence[str] = ()) -> bool:
    """Whether to doubt a page: its `confidence` (0 to 1) is low, the model marked a word as illegible, the `share` of
    uncertain words is high, or `garbled` words make no sense."""
    unsure = confidence is not None and confidence < DOUBTFUL
    return unsure or ILLEGIBLE in text or is_uncertain(share) or is_garbled(garbled)
