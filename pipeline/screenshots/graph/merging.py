"""Two nodes of one thread and kind as one. Source 000, sections 1.7 and 3.3."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.screenshots.analysis.replies import as_json, as_model
from pipeline.screenshots.analysis.schemas import MAX_KEYWORDS, EntityMention, MergeReply, clipped, entity_key, unique
from pipeline.screenshots.states import NodeKind, WorkStatus

TITLE_CHARS = 100
SUMMARY_CHARS = 200
"""To so many characters the rules merge texts (section 3.3). The nodes that were merged keep theirs."""


@dataclass(frozen=True)
class MergeNode:
    """A node as merging sees it. `merged_into`: the node it is part of now; `merge_status`: of its own merge."""

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
    merged_into: int | None = None
    merge_status: WorkStatus = WorkStatus.PENDING


def choose_target(node: MergeNode, candidates: Iterable[MergeNode]) -> MergeNode | None:
    """The latest settled node of the same thread and kind that is not part of another; None: the node stands alone.

    The source also takes nodes that were merged away themselves, since those are "succeeded" too: what is merged into
    them is never seen again.
    """
    if not node.thread_id or node.merged_into is not None:
        return None
    fit = [
        other
        for other in candidates
        if other.id != node.id and other.thread_id == node.thread_id and other.kind is node.kind
        and other.merge_status is WorkStatus.SUCCEEDED and other.merged_into is None
        and other.id not in node.merged_from_ids
    ]  # fmt: skip
    return max(fit, key=lambda other: (other.event_time_ms, other.id), default=None)


def root_of(node_id: int, merged_into: Mapping[int, int]) -> int:
    """The node that `node_id` is part of in the end: itself, if of none.

    Where the links run in a circle, the lowest id in it, whichever of its nodes is asked for.
    """
    path: dict[int, None] = {}
    while node_id not in path:
        path[node_id] = None
        if node_id not in merged_into:
            return node_id
        node_id = merged_into[node_id]
    trail = list(path)
    return min(trail[trail.index(node_id) :])


def may_merge(node_id: int, target_id: int, merged_into: Mapping[int, int]) -> bool:
    """Whether `node_id` can become part of `target_id` without closing a circle."""
    seen: set[int] = set()
    at: int | None = target_id
    while at is not None and at not in seen:
        if at == node_id:
            return False
        seen.add(at)
        at = merged_into.get(at)
    return at is None


def by_rules(existing: MergeNode, new: MergeNode) -> MergeNode:
    """The target's new content without a model. `merged_from_ids` names `new` itself, which the source leaves out."""
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
    """The same with the model's words; its keywords come first, its entities are added. Section 3.3."""
    merged = by_rules(existing, new)
    return replace(
        merged,
        title=reply.title,
        summary=reply.summary or merged.summary,
        keywords=merge_keywords(reply.keywords, merged.keywords),
        entities=merge_entities(merged.entities, reply.entities),
    )


def read_merge(text: str) -> MergeReply:
    """The reply to a merge. Raises `BadReply`; the rules' result holds then."""
    return as_model(MergeReply, as_json(text))


def merge_text(existing: str, new: str, limit: int, between: str) -> str:
    """Both texts if they fit; else, or where one says what the other does, the longer one, cut to `limit`."""
    one, other = existing.strip(), new.strip()
    longer = one if len(one) >= len(other) else other
    shorter = other if longer is one else one
    if shorter.casefold() in longer.casefold() or len(one) + len(between) + len(other) > limit:
        return clipped(longer, limit)
    return f"{one}{between}{other}"


def merge_keywords(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Each once, at most ten, the first ones' before the second's."""
    return tuple(unique([*first, *second])[:MAX_KEYWORDS])


def merge_entities(first: Iterable[EntityMention], second: Iterable[EntityMention]) -> tuple[EntityMention, ...]:
    """Each name once (whatever its case), with its higher confidence and a type where either has one."""
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
