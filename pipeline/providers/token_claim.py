"""How many tokens a call used, by the service's own word, which is believed as far as it can be true.

What a call is charged for closes gates and trips spend caps, and its figures go into columns of a certain width: a
service that claims 10³⁰ tokens must neither stop a queue for the day nor cost the answer that came with them.
"""

import math
from collections.abc import Iterable

import structlog

from pipeline.providers.protocols import Usage

log = structlog.get_logger(__name__)

UNSEEN_TOKENS = 100_000
"""Of a call beyond its texts: templates and tools of the service on the way in, thoughts on the way out."""
PICTURE_TOKENS = 100_000
"""Of one picture. Services charge up to some fifty thousand for large ones."""
MOST_TOKENS = 1_000_000_000
"""In one direction, whatever was sent: two of these still fit a column."""


def most_asked(texts: Iterable[str], pictures: int = 0) -> int:
    """The most tokens that a request of these texts can have: no tokenizer makes more of a text than it has bytes."""
    return sum(len(text) * 4 for text in texts) + pictures * PICTURE_TOKENS + UNSEEN_TOKENS


def most_answered(text: str, max_tokens: int) -> int:
    """The most tokens that an answer can have; `max_tokens`: as many as it was allowed."""
    return max(len(text) * 4, max_tokens) + UNSEEN_TOKENS


def believed(provider: str, asked: object, answered: object, most_in: int, most_out: int) -> Usage:
    """What is counted of a service's figures, and in `note` what was not believed. None: it says nothing."""
    counts, notes = [], []
    for direction, said, most in (("input", asked, most_in), ("output", answered, most_out)):
        counts.append(_count(said, min(most, MOST_TOKENS)))
        if said is not None and said != counts[-1]:
            notes.append(f"the service says {_shown(said)} {direction} tokens, counted as {counts[-1]:,}")
    if notes:
        log.warning("provider.tokens_not_believed", provider=provider, note="; ".join(notes))
    return Usage(counts[0], counts[1], "; ".join(notes))


def _count(said: object, most: int) -> int:
    if isinstance(said, bool) or not isinstance(said, int | float) or not said >= 0:  # NaN is not, either
        return 0
    return int(min(said, most))


def _shown(said: object) -> str:
    """A stranger's figure in a few characters."""
    if isinstance(said, int) and abs(said) >= 10**15:
        return f"{'-' if said < 0 else ''}10^{int(math.log10(abs(said)))}"
    return (
        f"{said:g}" if isinstance(said, float) else ascii(said)[:40] if isinstance(said, str | int) else "no number of"
    )
