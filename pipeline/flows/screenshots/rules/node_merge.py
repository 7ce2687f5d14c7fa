"""Merges two nodes of one thread and kind. Rules: docs/sources/screenshots.md#merges."""

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
"""Most characters after a merge by rules. The merged nodes keep their own texts."""


@dataclass(frozen=True)
class MergeNode:
    """The fields of a node that a merge needs."""

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
    """Return the node `existing` with the contents of both, merged without a model.

    Unlike in the design, `merged_from_ids` includes `new` itself.
    """
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
        merged_from_ids=tuple(node_id for node_id in dict.fromkeys(ids) if node_id != existing.id),
    )


def by_model(existing: MergeNode, new: MergeNode, reply: MergeReply) -> MergeNode:
    """Return the node `existing` with the model's title and summary, its keywords first, and its entities added."""
    merged = by_rules(existing, new)
    return replace(
        merged,
        title=reply.title,
        summary=reply.summary or merged.summary,
        keywords=merge_keywords(reply.keywords, merged.keywords),
        entities=merge_entities(merged.entities, reply.entities),
    )


def read_merge(text: str) -> MergeReply:
    """Parse the reply to a merge. Raises `BadReply`; `by_rules` then merges instead."""
    return as_model(MergeReply, as_json(text))


def merge_text(existing: str, new: str, limit: int, between: str) -> str:
    """Join both texts if they fit; otherwise, or if one contains the other, return the longer, cut to `limit`."""
    existing, new = existing.strip(), new.strip()
    longer = existing if len(existing) >= len(new) else new
    shorter = new if longer is existing else existing
    if shorter.casefold() in longer.casefold() or len(existing) + len(between) + len(new) > limit:
        return clipped(longer, limit)
    return f"{existing}{between}{new}"


def merge_keywords(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Join two lists without repeats, the first before the second, at most ten."""
    return tuple(unique([*first, *second])[:MAX_KEYWORDS])


def merge_entities(first: Iterable[EntityMention], second: Iterable[EntityMention]) -> tuple[EntityMention, ...]:
    """Return one mention for each `entity_key`: the mention of higher confidence, on a tie the earlier one. If it lacks
    a type, it takes the other's."""
    by_key: dict[str, EntityMention] = {}
    for entity in (*first, *second):
        key = entity_key(entity.name)
        known = by_key.get(key)
        if known is None:
            by_key[key] = entity
            continue
        surer, other = (entity, known) if entity.confidence > known.confidence else (known, entity)
        by_key[key] = surer.model_copy(update={"entity_type": surer.entity_type or other.entity_type})
    return tuple(by_key.values())
