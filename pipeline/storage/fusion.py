"""Shared parts of searches by words and by vectors: fuse several rankings into one, and cut an excerpt of a match."""

import re
from collections.abc import Iterable, Mapping, Sequence

from pipeline.storage.fulltext import CJK, SHORTEST_PREFIX
from pipeline.storage.letters import plain

RRF_K = 60
"""The usual constant of reciprocal rank fusion: a first place counts 1/61."""
MAX_WORDS = 8
_MOST_SPOTS = 200
_LONGEST_CUT = 16
"""How many characters an excerpt may lose so that it has whole words at both ends."""
_LETTER = f"[^\\W_{CJK}]"
_IS_CJK = re.compile(f"[{CJK}]")
_PART = re.compile(f"[{CJK}]+|{_LETTER}+")


def ranks(items: Iterable[int]) -> dict[int, int]:
    """Return the rank of each item, from 1."""
    return {item: rank for rank, item in enumerate(items, 1)}


def fuse(*rankings: Mapping[int, int]) -> list[tuple[int, float]]:
    """Fuse rankings by reciprocal rank: return (item, score), best first. The rankings' own scores need not be
    comparable."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for item, rank in ranking.items():
            scores[item] = scores.get(item, 0.0) + 1 / (RRF_K + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], -pair[0]))


def query_words(words: str) -> list[str]:
    """Return the different words of a query that an excerpt may show, case-folded, the longest first, at most
    `MAX_WORDS`."""
    return sorted(set(words.casefold().split()), key=len, reverse=True)[:MAX_WORDS]


def spots(text: str, words: str) -> list[tuple[int, int]]:
    """Return (begin, end) of each match of a query's words in a text: whole words, or prefixes as a search matches
    them."""
    parts = dict.fromkeys(part for word in query_words(words) for part in _PART.findall(plain(word)))
    cjk = [part for part in parts if _IS_CJK.match(part)]
    pairs = [part[i : i + 2] for part in cjk for i in range(len(part) - 1)]
    patterns = [_at_beginnings(part) for part in sorted({*parts} - {*cjk}, key=len, reverse=True)]
    patterns += [re.escape(part) for part in sorted({*cjk, *pairs}, key=len, reverse=True)]
    if not patterns:
        return []
    letters = (
        text.casefold() if text.isascii() else [plain(letter.casefold()) for letter in text]
    )  # ß becomes two letters
    places = [at for at, letter in enumerate(letters) for _ in letter]
    matches = re.finditer("|".join(patterns), "".join(letters))
    return [(places[match.start()], places[match.end() - 1] + 1) for match in matches]


def _at_beginnings(word: str) -> str:
    rest = f"{_LETTER}*" if len(word) >= SHORTEST_PREFIX else ""
    return f"(?<!{_LETTER}){re.escape(word)}{rest}(?!{_LETTER})"


def excerpt(text: str, words: str, chars: int) -> str:
    """Return about `chars` characters of a text on one line, where most words match, above all the long ones."""
    flat = " ".join(text.split())
    begin = max(0, _place(flat, spots(flat, words)[:_MOST_SPOTS], chars) - chars // 3)
    end = begin + chars
    if begin and (blank := flat.find(" ", begin - 1, begin + _LONGEST_CUT)) >= 0:
        begin = blank + 1
    if end < len(flat) and (blank := flat.rfind(" ", end - _LONGEST_CUT, end + 1)) > begin:
        end = blank
    return ("…" if begin else "") + flat[begin:end] + ("…" if end < len(flat) else "")


def _place(text: str, matches: Sequence[tuple[int, int]], chars: int) -> int:
    best = place = 0
    for at, (begin, _) in enumerate(matches):
        near = {text[b:e].casefold() for b, e in matches[at:] if e <= begin + chars - chars // 3 - _LONGEST_CUT}
        if (weight := sum(map(len, near))) > best:
            best, place = weight, begin
    return place
