"""What of a chunk is embedded, and how that is recognised again."""

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass


def embedded_text(heading: Sequence[str], text: str) -> str:
    """A chunk's text after the headings above it, which say what it is about."""
    above = [one for one in heading if one not in text[: len(one) + 20]]
    return "\n".join(filter(None, [" > ".join(above), text]))


def digest_of(text: str) -> str:
    """Names what is embedded: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


@dataclass(frozen=True)
class Grouping:
    """Which batch each chunk belongs to, by the chunks' order; `known`: the batches whose vectors there are already."""

    batch_of: list[int]
    sizes: list[int]
    known: int


def grouped(digests: Sequence[str], known: Container[str], size: int) -> Grouping:
    """Put chunks into batches of `size`, those whose vectors are known into batches of their own, which come first."""
    batch_of, first = [0] * len(digests), 0
    sizes: list[int] = []
    for is_known in (True, False):
        mine = [at for at, digest in enumerate(digests) if (digest in known) is is_known]
        for start in range(0, len(mine), size):
            for at in mine[start : start + size]:
                batch_of[at] = len(sizes)
            sizes.append(len(mine[start : start + size]))
        if is_known:
            first = len(sizes)
    return Grouping(batch_of, sizes, first)
