"""Merges the results of a batch's shards, and rejoins segments that a boundary between shards cut.

Rules: docs/sources/screenshots.md#vision.
"""

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
"""The share of words that the titles of two segments at a boundary must have in common to become one segment."""
_WORD = re.compile(r"\w+")


def merge_shards(results: Sequence[VlmIndex], max_segments: int) -> VlmIndex:
    """Merge the indexes of all shards, in the order of their screenshots, without losing a valid part.

    Joins a segment with its continuation in the next shard. Beyond `max_segments`, merges the least important segment
    into a neighbour, and never drops one.
    """
    merged: list[Segment] = []
    reach: set[int] = set()
    for result in results:
        begin = min((min(segment.screen_ids) for segment in result.segments), default=0)
        for segment in sorted(result.segments, key=lambda each: (min(each.screen_ids), max(each.screen_ids))):
            place = _same(segment, merged, reach if min(segment.screen_ids) == begin else set())
            if place is None:
                merged.append(segment)
            else:
                merged[place] = merge_segments(merged[place], segment)
        last = max((max(segment.screen_ids) for segment in merged), default=0)
        reach = {place for place, segment in enumerate(merged) if max(segment.screen_ids) == last}
    while len(merged) > max(1, max_segments):
        _fold_least(merged)
    seen: dict[int, SeenScreenshot] = {}
    for result in results:
        for shot in result.screenshots:
            seen.setdefault(shot.screenshot_id, shot)
    return VlmIndex(
        # Each shard numbers its segments from 1: renumber them.
        segments=[each.model_copy(update={"segment_id": f"seg_{n}"}) for n, each in enumerate(merged, start=1)],
        entities=unique(name for result in results for name in result.entities),
        screenshots=list(seen.values()),
    )


def _same(segment: Segment, merged: Sequence[Segment], reach: set[int]) -> int | None:
    """Return the position of the merged segment that `segment` repeats or continues; None if it is new. `reach`: the
    positions that it may continue."""
    for place, other in enumerate(merged):
        if segment.merge_hint != other.merge_hint:
            continue
        same_title = segment.event.title.casefold() == other.event.title.casefold()
        if segment.screen_ids == other.screen_ids and same_title:
            return place
        if place in reach and similar(segment.event.title, other.event.title):
            return place
    return None


def similar(title: str, other: str) -> bool:
    """Whether two titles share most of their words."""
    words, others = set(_WORD.findall(title.casefold())), set(_WORD.findall(other.casefold()))
    if not words or not others:
        return title.strip().casefold() == other.strip().casefold()
    return len(words & others) / len(words | others) >= SIMILAR


def _fold_least(merged: list[Segment]) -> None:
    """Merge the least important segment in `merged` into a neighbour: of the same thread if possible, else the
    nearer."""

    def rank(at: int) -> tuple[bool, int, int]:
        gap = min(abs(a - b) for a in merged[at].screen_ids for b in segment.screen_ids)
        return merged[at].merge_hint != segment.merge_hint, gap, -at

    place = min(range(len(merged)), key=lambda at: (merged[at].event.importance, merged[at].event.confidence, -at))
    segment = merged[place]
    best = min((at for at in (place - 1, place + 1) if 0 <= at < len(merged)), key=rank)
    merged[best] = merge_segments(merged[best], segment)
    del merged[place]


def merge_segments(first: Segment, second: Segment) -> Segment:
    """Merge two segments: title and thread of the more important one (the first on a tie), both summaries, all findings
    and screens, the best scores."""
    findings: dict[str, list[Finding]] = {}
    for kind in DERIVED:
        both = [*getattr(first.derived, kind.value), *getattr(second.derived, kind.value)]
        findings[kind.value] = list({(each.title.casefold(), each.summary): each for each in both}.values())
    lead, rest = (first, second) if first.event.importance >= second.event.importance else (second, first)
    event = lead.event.model_copy(
        update={
            "summary": _both_summaries(lead, rest),
            "importance": max(first.event.importance, second.event.importance),
            "confidence": max(first.event.confidence, second.event.confidence),
        }
    )
    return lead.model_copy(
        update={
            "event": event,
            "screen_ids": sorted({*first.screen_ids, *second.screen_ids}),
            "derived": Derived(**findings),
            "keywords": unique([*first.keywords, *second.keywords])[: 2 * MAX_KEYWORDS],
        }
    )


def _both_summaries(lead: Segment, rest: Segment) -> str:
    summary, added = lead.event.summary, rest.event.summary
    if not similar(lead.event.title, rest.event.title):
        added = f"{rest.event.title}: {added}".removesuffix(": ")
    if added in summary:
        return summary
    return added if summary in added else clipped(f"{summary}\n{added}", MAX_SUMMARY)
