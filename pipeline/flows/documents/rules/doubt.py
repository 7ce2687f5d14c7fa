"""Whether a page's text was recognised so poorly that somebody should look at it."""

DOUBTFUL = 0.93
"""Below this, recognition was not sure of a page. Measured at 200 dpi: clean and scanned pages 0.97 to 0.99,
pictures of screens with their icons 0.95 and more; a scan at 70 dpi, with an error in every other line,
0.92, at 50 dpi 0.72, under heavy noise 0.85; Korean, Cyrillic and Arabic, which it does not know, 0 to 0.8."""

ILLEGIBLE = "[illegible]"
"""What models are asked to write for a word that cannot be read."""


def is_doubtful(text: str, confidence: float | None) -> bool:
    """By what the recognition said of itself, 0 to 1, or the model of a word."""
    return (confidence is not None and confidence < DOUBTFUL) or ILLEGIBLE in text
