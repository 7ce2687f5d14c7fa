"""Whether a page's text was recognised so poorly that somebody should look at it."""

from pipeline.reading.layout.certainty import DOUBTFUL

ILLEGIBLE = "[illegible]"
"""What models are asked to write for a word that cannot be read."""


UNCERTAIN = 0.5
"""A page of whose text this share is words that recognition was unsure of is hardly text: handwriting, noise, or a
script that it does not know. Clean pages have 0 to 0.02, a blurred one with an error in every third line 0.1."""


def is_uncertain(share: float | None) -> bool:
    """Whether most of a page's recognised text may be wrong; `share` of it is words that recognition was unsure of."""
    return share is not None and share >= UNCERTAIN


def is_doubtful(text: str, confidence: float | None) -> bool:
    """By what the recognition said of itself, 0 to 1, or the model of a word."""
    return (confidence is not None and confidence < DOUBTFUL) or ILLEGIBLE in text
