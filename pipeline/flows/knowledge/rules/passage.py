"""The text to embed for a chunk, its digest, and the grouping of chunks into batches."""

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass


def embedded_text(heading: Sequence[str], text: str) -> str:
    """Return the text to embed: a chunk's headings that it does not begin with, which name its subject, then its
    text."""
    above = [name for name in heading if name not in text[: len(name) + 20]]
    return "\n".join(filter(None, [" > ".join(above), text]))


def digest_of(text: str) -> str:
    """Return the digest of a text to embed: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


@dataclass(frozen=True)
class Grouping:
    """The number of each chunk's batch, in the chunks' order. `known`: how many first batches have their vectors."""

    batch_of: list[int]
    sizes: list[int]
    known: int


def grouped(digests: Sequence[str], known: Container[str], size: int) -> Grouping:
    """Put chunks into batches of `size`; chunks with known vectors get batches of their own, which come first."""
    batch_of, first = [0] * len(digests), 0
    sizes: list[int] = []
    for is_known in (True, False):
        members = [at for at, digest in enumerate(digests) if (digest in known) is is_known]
        for start in range(0, len(members), size):
            for at in members[start : start + size]:
                batch_of[at] = len(sizes)
            sizes.append(len(members[start : start + size]))
        if is_known:
            first = len(sizes)
    return Grouping(batch_of, sizes, first)
