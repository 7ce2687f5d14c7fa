"""What searches by words and by vectors have in common: one ranking from several, and an excerpt of what was found."""

from collections.abc import Iterable, Mapping

from pipeline.storage.letters import plain

RRF_K = 60
"""The usual constant of reciprocal rank fusion: a first place counts 1/61."""
MAX_WORDS = 8


def ranks(items: Iterable[int]) -> dict[int, int]:
    """Their places, from 1."""
    return {item: rank for rank, item in enumerate(items, 1)}


def fuse(*rankings: Mapping[int, int]) -> list[tuple[int, float]]:
    """Reciprocal rank fusion: (item, score), best first. The rankings' own scores need not be comparable."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for item, rank in ranking.items():
            scores[item] = scores.get(item, 0.0) + 1 / (RRF_K + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], -pair[0]))


def sought(words: str) -> list[str]:
    """The words of a query that an excerpt may show, the longest first."""
    return sorted(set(words.casefold().split()), key=len, reverse=True)[:MAX_WORDS]


def excerpt(text: str, words: str, chars: int) -> str:
    """About so many characters of a text on one line, around the longest of the words that is in it."""
    flat = " ".join(text.split())
    folded = plain(flat.casefold())
    place = next((at for word in sought(words) if (at := folded.find(plain(word))) >= 0), 0)
    begin = max(0, place - chars // 3)
    end = begin + chars
    return ("…" if begin else "") + flat[begin:end] + ("…" if end < len(flat) else "")
