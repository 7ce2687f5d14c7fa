"""The results of a batch's shards as one: what a boundary cut in two is one again. Source 000, section 1.5."""

import re
from collections.abc import Sequence

from pipeline.flows.screenshots.rules.schemas import (
    MAX_KEYWORDS,
    MAX_SUMMARY,
    Derived,
    Finding,
    SeenScreenshot,
    Segment,
    VlmIndex,
    clipped,
    unique,
)
from pipeline.flows.screenshots.states import DERIVED

SIMILAR = 0.6
"""Part of their words that two titles at a boundary must share to be one segment's."""
_WORD = re.compile(r"\w+")


def merge_shards(results: Sequence[VlmIndex], max_segments: int) -> VlmIndex:
    """One index from those of all shards, in the order of their screenshots. Nothing that is valid is lost.

    Segments that go on from one shard into the next are joined. Where there are more than `max_segments`, the least
    important one is joined to its neighbour, never dropped.
    """
    merged: list[Segment] = []
    reach: set[int] = set()
    for result in results:
        begin = min((min(segment.screen_ids) for segment in result.segments), default=0)
        for segment in sorted(result.segments, key=lambda one: (min(one.screen_ids), max(one.screen_ids))):
            place = _same(segment, merged, reach if min(segment.screen_ids) == begin else set())
            if place is None:
                merged.append(segment)
            else:
                merged[place] = joined(merged[place], segment)
        last = max((max(segment.screen_ids) for segment in merged), default=0)
        reach = {place for place, segment in enumerate(merged) if max(segment.screen_ids) == last}
    while len(merged) > max(1, max_segments):
        _fold(merged)
    seen: dict[int, SeenScreenshot] = {}
    for result in results:
        for shot in result.screenshots:
            seen.setdefault(shot.screenshot_id, shot)
    return VlmIndex(
        # Each shard counts its segments from the start, so their names are given anew.
        segments=[one.model_copy(update={"segment_id": f"seg_{n}"}) for n, one in enumerate(merged, start=1)],
        entities=unique(name for result in results for name in result.entities),
        screenshots=list(seen.values()),
    )


def _same(segment: Segment, merged: Sequence[Segment], reach: set[int]) -> int | None:
    """Where `segment` stands already: said twice of the same screens, or `reach`ing to the boundary before it."""
    for place, other in enumerate(merged):
        if segment.merge_hint != other.merge_hint:
            continue
        if segment.screen_ids == other.screen_ids and _title(segment) == _title(other):
            return place
        if place in reach and similar(segment.event.title, other.event.title):
            return place
    return None


def similar(one: str, other: str) -> bool:
    """Whether two titles say the same: most of their words are shared."""
    words, others = set(_WORD.findall(one.casefold())), set(_WORD.findall(other.casefold()))
    if not words or not others:
        return one.strip().casefold() == other.strip().casefold()
    return len(words & others) / len(words | others) >= SIMILAR


def _title(segment: Segment) -> str:
    return segment.event.title.casefold()


def _fold(merged: list[Segment]) -> None:
    """Join the least important segment to a neighbour: one of the same thread before another, the nearer before."""
    place = min(range(len(merged)), key=lambda at: (merged[at].event.importance, merged[at].event.confidence, -at))
    segment = merged[place]
    neighbours = [at for at in (place - 1, place + 1) if 0 <= at < len(merged)]
    best = min(
        neighbours, key=lambda at: (merged[at].merge_hint != segment.merge_hint, _gap(merged[at], segment), -at)
    )  # fmt: skip
    merged[best] = joined(merged[best], segment)
    del merged[place]


def _gap(one: Segment, other: Segment) -> int:
    return min(abs(a - b) for a in one.screen_ids for b in other.screen_ids)


def joined(first: Segment, second: Segment) -> Segment:
    """Two segments as one: the title of the more important, both summaries, all findings and screens, best scores."""
    lead, rest = (first, second) if first.event.importance >= second.event.importance else (second, first)
    event = lead.event.model_copy(
        update={
            "summary": _both(lead, rest),
            "importance": max(first.event.importance, second.event.importance),
            "confidence": max(first.event.confidence, second.event.confidence),
        }
    )
    return lead.model_copy(
        update={
            "event": event,
            "screen_ids": sorted({*first.screen_ids, *second.screen_ids}),
            "derived": _findings(first.derived, second.derived),
            "keywords": unique([*first.keywords, *second.keywords])[: 2 * MAX_KEYWORDS],
        }
    )


def _both(lead: Segment, rest: Segment) -> str:
    said, added = lead.event.summary, rest.event.summary
    if not similar(lead.event.title, rest.event.title):
        added = f"{rest.event.title}: {added}".removesuffix(": ")
    if added in said:
        return said
    return added if said in added else clipped(f"{said}\n{added}", MAX_SUMMARY)


def _findings(first: Derived, second: Derived) -> Derived:
    """Those of both, each (title and summary) once."""
    by_kind: dict[str, list[Finding]] = {}
    for kind in DERIVED:
        both = [*getattr(first, kind.value), *getattr(second, kind.value)]
        by_kind[kind.value] = list({(one.title.casefold(), one.summary): one for one in both}.values())
    return Derived(**by_kind)
