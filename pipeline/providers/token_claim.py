"""Limit a service's report of tokens used to plausible values.

The reported tokens close gates and trip spend caps, and are stored in columns of limited width: a service that reports
10³⁰ tokens must neither stop a queue for the day nor cost the answer.
"""

import math
from collections.abc import Iterable

import structlog

from pipeline.providers.protocols import Usage

log = structlog.get_logger(__name__)

UNSEEN_TOKENS = 100_000
"""Tokens of a call beyond its texts: the service's templates and tools on input, reasoning on output."""
PICTURE_TOKENS = 100_000
"""Tokens of one picture. Services charge up to some fifty thousand for large ones."""
PIXELS_PER_TOKEN = 784
"""Of a picture: most models see squares of 28 x 28 pixels."""
USUAL_PICTURE_TOKENS = 2_000
MOST_TOKENS = 1_000_000_000
"""The most tokens in one direction, whatever was sent: two of these still fit a column."""


def most_input(texts: Iterable[str], pictures: int = 0) -> int:
    """Return the most tokens that a request of these texts can have: no tokenizer makes more tokens than bytes."""
    return sum(len(text) * 4 for text in texts) + pictures * PICTURE_TOKENS + UNSEEN_TOKENS


def most_output(text: str, max_tokens: int) -> int:
    """Return the most tokens that an answer can have; `max_tokens`: the request's limit."""
    return max(len(text) * 4, max_tokens) + UNSEEN_TOKENS


def estimated(texts: Iterable[str], pixels: int, answer: str, pieces: int, *, cut: bool) -> Usage:
    """Return the tokens of a call whose service did not report them: most services send a token in each of the
    answer's `pieces`. `pixels`: of the picture, 0 if unknown; `cut`: we broke the answer off."""
    tokens_in = sum(map(len, texts)) // 4 + (pixels // PIXELS_PER_TOKEN or USUAL_PICTURE_TOKENS)
    why = "was broken off because it repeats itself" if cut else "came without a report of its tokens"
    return Usage(tokens_in, max(pieces, len(answer) // 4), f"the answer {why}: its tokens are estimated")


def plausible(
    provider: str, tokens_in: object, tokens_out: object, most_in: int, most_out: int, reasoned: object = None
) -> Usage:
    """Return a service's reported tokens, at most `most_in` and `most_out`, with corrections in `note`. None, or no
    number of 0 or more: 0. `reasoned`: those of the output that are reasoning."""
    counts, notes = [], []
    for direction, reported, most in (("input", tokens_in, most_in), ("output", tokens_out, most_out)):
        counts.append(_count(reported, min(most, MOST_TOKENS)))
        if reported is not None and reported != counts[-1]:
            notes.append(f"the service says {_shown(reported)} {direction} tokens, counted as {counts[-1]:,}")
    if notes:
        log.warning("provider.tokens_not_believed", provider=provider, note="; ".join(notes))
    return Usage(counts[0], counts[1], "; ".join(notes), _count(reasoned, counts[1]))


def _count(reported: object, most: int) -> int:
    if isinstance(reported, bool) or not isinstance(reported, int | float) or not reported >= 0:  # false for NaN too
        return 0
    return int(min(reported, most))


def _shown(reported: object) -> str:
    """Return a reported figure in a few characters."""
    if isinstance(reported, int) and abs(reported) >= 10**15:
        return f"{'-' if reported < 0 else ''}10^{int(math.log10(abs(reported)))}"
    if isinstance(reported, float):
        return f"{reported:g}"
    return ascii(reported)[:40] if isinstance(reported, str | int) else "no number of"
