"""Two nodes of one thread and kind as one. Rules: docs/sources/screenshots.md#merges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.flows.screenshots.rules.schemas import (
    MAX_KEYWORDS,
    EntityMention,
    MergeReply,
    clipped,
    entity_key,
    unique,
)
from pipeline.flows.screenshots.states import NodeKind
from pipeline.providers.replies import as_json, as_model

TITLE_CHARS = 100
SUMMARY_CHARS = 200
"""The most characters that merging by rules gives. The merged nodes keep their own texts."""


@dataclass(frozen=True)
class MergeNode:
    """What merging needs of a node."""

    id: int
    kind: NodeKind
    thread_id: str
    title: str
    summary: str = ""
    keywords: tuple[str, ...] = ()
    entities: tuple[EntityMention, ...] = ()
    importance: int = 5
    confidence: int = 5
    screenshot_ids: tuple[int, ...] = ()
    event_time_ms: int = 0
    merged_from_ids: tuple[int, ...] = ()


def by_rules(existing: MergeNode, new: MergeNode) -> MergeNode:
    """The target's new content without a model. `merged_from_ids` includes `new` itself, unlike the design's."""
    ids = [*existing.merged_from_ids, new.id, *new.merged_from_ids]
    return replace(
        existing,
        title=merge_text(existing.title, new.title, TITLE_CHARS, " / "),
        summary=merge_text(existing.summary, new.summary, SUMMARY_CHARS, "\n"),
        keywords=merge_keywords(existing.keywords, new.keywords),
        entities=merge_entities(existing.entities, new.entities),
        importance=max(existing.importance, new.importance),
        confidence=max(existing.confidence, new.confidence),
        screenshot_ids=tuple(dict.fromkeys([*existing.screenshot_ids, *new.screenshot_ids])),
        event_time_ms=max(existing.event_time_ms, new.event_time_ms),
        merged_from_ids=tuple(one for one in dict.fromkeys(ids) if one != existing.id),
    )


def by_model(existing: MergeNode, new: MergeNode, reply: MergeReply) -> MergeNode:
    """The same in the model's words; its keywords come first, its entities are added."""
    merged = by_rules(existing, new)
    return replace(
        merged,
        title=reply.title,
        summary=reply.summary or merged.summary,
        keywords=merge_keywords(reply.keywords, merged.keywords),
        entities=merge_entities(merged.entities, reply.entities),
    )


def read_merge(text: str) -> MergeReply:
    """The reply to a merge. Raises `BadReply`; then the rules' result holds."""
    return as_model(MergeReply, as_json(text))


def merge_text(existing: str, new: str, limit: int, between: str) -> str:
    """Both texts if they fit; otherwise, or if one contains the other, the longer one, cut to `limit`."""
    one, other = existing.strip(), new.strip()
    longer = one if len(one) >= len(other) else other
    shorter = other if longer is one else one
    if shorter.casefold() in longer.casefold() or len(one) + len(between) + len(other) > limit:
        return clipped(longer, limit)
    return f"{one}{between}{other}"


def merge_keywords(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Each once, at most ten, the first list's before the second's."""
    return tuple(unique([*first, *second])[:MAX_KEYWORDS])


def merge_entities(first: Iterable[EntityMention], second: Iterable[EntityMention]) -> tuple[EntityMention, ...]:
    """Each name once (in any case), with the higher confidence, and a type if either has one."""
    found: dict[str, EntityMention] = {}
    for entity in (*first, *second):
        key = entity_key(entity.name)
        known = found.get(key)
        if known is None:
            found[key] = entity
            continue
        surer, other = (entity, known) if entity.confidence > known.confidence else (known, entity)
        found[key] = surer.model_copy(update={"entity_type": surer.entity_type or other.entity_type})
    return tuple(found.values())
