"""Turns segments into nodes, from a text model's reply or directly without one.

Rules: docs/sources/screenshots.md#expansion.

The same input gives the same output, including thread ids, so that a retry after a crash writes nothing twice.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.flows.screenshots.rules.batches import Shot
from pipeline.flows.screenshots.rules.schemas import (
    MAX_KEYWORDS,
    EntityMention,
    ExpandedEdge,
    ExpandedNode,
    ExpandReply,
    Segment,
    VlmIndex,
)
from pipeline.flows.screenshots.states import NodeKind, Origin
from pipeline.providers.replies import BadReply, Read, as_json, as_model, lists_in, valid

DERIVED_FROM = "derived_from"


@dataclass(frozen=True)
class BatchFacts:
    """The facts of a batch for its nodes. `screens`: by screen id, from 1; `threads`: ids from its history."""

    idempotency_key: str
    source_key: str
    screens: Mapping[int, Shot]
    threads: frozenset[str] = frozenset()

    @property
    def times(self) -> dict[int, int]:
        """Times of capture, in ms since 1970, by our screenshot ids."""
        return {shot.id: shot.ts_ms for shot in self.screens.values()}


@dataclass(frozen=True)
class Evidence:
    """The texts and program of a screenshot."""

    screenshot_id: int
    app_hint: str = ""
    window_title: str = ""
    ocr_text: str = ""
    ui_text_snippets: tuple[str, ...] = ()


@dataclass(frozen=True)
class PendingNode:
    """A node to write. Two with the same `origin_key` are one node."""

    kind: NodeKind
    thread_id: str
    title: str
    summary: str
    keywords: tuple[str, ...]
    entities: tuple[EntityMention, ...]
    importance: int
    confidence: int
    screenshot_ids: tuple[int, ...]
    event_time_ms: int
    made_by: Origin
    origin_key: str = ""


@dataclass(frozen=True)
class PendingEdge:
    """An edge between two origin keys, from a finding to its event."""

    from_key: str
    to_key: str
    edge_type: str = DERIVED_FROM


@dataclass(frozen=True)
class Expansion:
    """The nodes and edges of a batch. `notes`: sentences about corrections."""

    nodes: tuple[PendingNode, ...]
    edges: tuple[PendingEdge, ...]
    notes: tuple[str, ...] = ()


@dataclass
class _Draft:
    """A node under construction, and the event that it belongs to."""

    node: PendingNode
    parent: "_Draft | None" = None
    other_edges: list[tuple["_Draft", str]] = field(default_factory=list)


def thread_of(facts: BatchFacts, place: int, segment: Segment) -> tuple[str, str]:
    """Return (the thread id of the batch's segment number `place`, a note about a correction or "").

    The thread is an old one if the history has it. A new thread's id derives from batch and place: a random id, as in
    the design, would start another thread with each retry.
    """
    hint = segment.merge_hint
    if hint.decision == "MERGE" and hint.thread_id in facts.threads:
        return hint.thread_id, ""
    digest = hashlib.sha256(f"{facts.idempotency_key}:{place}".encode()).hexdigest()[:20]
    note = ""
    if hint.decision == "MERGE":
        note = f"“{segment.event.title}” names a thread outside its history; it starts a new thread"
    return f"thread_{digest}", note


def with_threads(index: VlmIndex, facts: BatchFacts) -> Read[list[tuple[Segment, str]]]:
    """Pair each segment with its thread's id, old or new; the notes name corrections."""
    decided = [thread_of(facts, place, segment) for place, segment in enumerate(index.segments)]
    pairs = [(segment, thread) for segment, (thread, _) in zip(index.segments, decided, strict=True)]
    return Read(pairs, tuple(note for _, note in decided if note))


def evidence_of(index: VlmIndex, facts: BatchFacts) -> list[Evidence]:
    """Return the texts and the program of each screenshot of the batch, in order, for the prompt. Rule:
    docs/sources/screenshots.md#expansion."""
    seen = {shot.screenshot_id: shot for shot in index.screenshots}
    packs = []
    for _, shot in sorted(facts.screens.items()):
        read = seen.get(shot.id)
        guess = read.app_guess.name if read and read.app_guess else ""
        text, snippets = (read.ocr_text, tuple(read.ui_text_snippets)) if read else ("", ())
        packs.append(Evidence(shot.id, shot.app_hint or guess, shot.window_title, text, snippets))
    return packs


def read_expansion(text: str) -> ExpandReply:
    """Parse a reply's nodes and edges. Raises `BadReply`, also if no node is an event."""
    return _with_event(as_model(ExpandReply, as_json(text)))


def usable_expansion(text: str) -> ExpandReply | None:
    """Parse the valid nodes of a reply and the edges between them; None if no event is left."""
    lists = lists_in(text, ("nodes", "edges"))
    places: dict[int, int] = {}
    nodes: list[ExpandedNode] = []
    for place, item in enumerate(lists["nodes"]):
        if node := valid(ExpandedNode, [item]):
            places[place] = len(nodes)
            nodes += node
    edges = [
        edge.model_copy(update={"from_index": places[edge.from_index], "to_index": places[edge.to_index]})
        for edge in valid(ExpandedEdge, lists["edges"])
        if edge.from_index in places and edge.to_index in places
    ]
    try:
        return _with_event(ExpandReply(nodes=nodes, edges=edges))
    except BadReply:
        return None


def _with_event(reply: ExpandReply) -> ExpandReply:
    if not any(node.kind is NodeKind.EVENT for node in reply.nodes):
        raise BadReply("nodes: none is of kind event")
    return reply


def direct(
    facts: BatchFacts, segments: Sequence[tuple[Segment, str]], index: VlmIndex, made_by: Origin = Origin.DIRECT
) -> Expansion:
    """Return an event for each segment, and its findings, as nodes made without a text model. Skips segments whose
    screenshots are all deleted.

    Rule: docs/sources/screenshots.md#expansion.
    """
    drafts: list[_Draft] = []
    for segment, thread_id in segments:
        drafts += _converted(facts, segment, thread_id, index, made_by)
    return _finished(facts, drafts, ())


def _converted(facts: BatchFacts, segment: Segment, thread_id: str, index: VlmIndex, made_by: Origin) -> list[_Draft]:
    if not (ids := _shown(facts, segment)):
        return []
    event = PendingNode(
        NodeKind.EVENT,
        thread_id,
        segment.event.title,
        segment.event.summary,
        tuple(segment.keywords[:MAX_KEYWORDS]),
        _mentions(segment, ids, index),
        segment.event.importance,
        segment.event.confidence,
        ids,
        max(facts.times[screenshot] for screenshot in ids),
        made_by,
    )
    parent = _Draft(event)
    findings = [
        _Draft(replace(event, kind=kind, title=finding.title, summary=finding.summary, entities=()), parent)
        for kind, finding in segment.derived.by_kind()
    ]
    return [parent, *findings]


def expanded(
    facts: BatchFacts, segments: Sequence[tuple[Segment, str]], reply: ExpandReply, index: VlmIndex
) -> Expansion:
    """Return the text model's nodes, checked against its prompt, and direct nodes of the segments that it left out."""
    notes: list[str] = []
    covered: Counter[int] = Counter()
    drafts: dict[int, _Draft] = {}
    for place, node in enumerate(reply.nodes):
        if node.kind is NodeKind.EVENT and (event := _event(node, facts, segments, covered, notes)):
            drafts[place] = event
    parents = _parents(reply, drafts)
    for place, node in enumerate(reply.nodes):
        if node.kind is not NodeKind.EVENT and (finding := _finding(node, facts, drafts, parents.get(place), notes)):
            drafts[place] = finding
    for edge in reply.edges:
        start, end = drafts.get(edge.from_index), drafts.get(edge.to_index)
        if start and end and start is not end and edge.edge_type and edge.edge_type != DERIVED_FROM:
            start.other_edges.append((end, edge.edge_type[:40]))
    ordered = [drafts[place] for place in sorted(drafts)]
    for at, (segment, thread_id) in enumerate(segments):
        if not covered[at]:
            notes.append(f"the text model left out “{segment.event.title}”; its segment became a node directly")
            ordered += _converted(facts, segment, thread_id, index, Origin.DIRECT)
    return _finished(facts, ordered, tuple(notes))


def _event(
    node: ExpandedNode,
    facts: BatchFacts,
    segments: Sequence[tuple[Segment, str]],
    covered: Counter[int],
    notes: list[str],
) -> _Draft | None:
    """Draft an event with the thread of a segment with which it shares screenshots: of several, the one whose thread it
    names, then the one with the fewest events. None without one; `notes` says so."""
    ids = _known_ids(node, facts, notes)
    best: tuple[tuple[bool, int, int], int] | None = None
    for at, (segment, thread_id) in enumerate(segments):
        shared = len(set(_shown(facts, segment)) & set(ids))
        rank = (thread_id == node.thread_id, -covered[at], shared)
        if shared and (best is None or rank > best[0]):
            best = rank, at
    if best is None:
        notes.append(f"“{node.title}” was left out: it names no screenshot of a segment")
        return None
    covered[best[1]] += 1
    thread_id = segments[best[1]][1]
    if node.thread_id and node.thread_id != thread_id:
        notes.append(f"“{node.title}” names another thread than its segment; it gets its segment's thread")
    return _Draft(_node(node, thread_id, ids, facts))


def _finding(
    node: ExpandedNode, facts: BatchFacts, drafts: Mapping[int, _Draft], named: int | None, notes: list[str]
) -> _Draft | None:
    """Draft a finding with the thread of its event: the event `named` by an edge, or else the event that shares most
    screenshots with it. None without events."""
    ids = _known_ids(node, facts, notes)
    events = {place: draft for place, draft in drafts.items() if draft.node.kind is NodeKind.EVENT}
    if not events:
        return None
    if named is None:
        named = max(
            events,
            key=lambda at: (
                len(set(events[at].node.screenshot_ids) & set(ids)),
                events[at].node.thread_id == node.thread_id,
                -at,
            ),
        )
    parent = events[named]
    return _Draft(_node(node, parent.node.thread_id, ids or parent.node.screenshot_ids, facts), parent)


def _parents(reply: ExpandReply, events: Mapping[int, _Draft]) -> dict[int, int]:
    """Map findings to events by edges of either direction, because the design's example reverses them."""
    parents: dict[int, int] = {}
    for edge in reply.edges:
        for child, parent in ((edge.from_index, edge.to_index), (edge.to_index, edge.from_index)):
            if edge.edge_type == DERIVED_FROM and parent in events and child not in events:
                parents.setdefault(child, parent)
    return parents


def _known_ids(node: ExpandedNode, facts: BatchFacts, notes: list[str]) -> tuple[int, ...]:
    times = facts.times
    if any(screenshot not in times for screenshot in node.screenshot_ids):
        notes.append(f"“{node.title}” names screenshots outside the batch; they were left out")
    known = {shot_id for shot_id in node.screenshot_ids if shot_id in times}
    return tuple(sorted(known, key=lambda shot_id: (times[shot_id], shot_id)))


def _node(node: ExpandedNode, thread_id: str, ids: tuple[int, ...], facts: BatchFacts) -> PendingNode:
    times = [facts.times[screenshot] for screenshot in ids]
    shown_time = node.event_time
    time_ms = int(shown_time) if shown_time is not None and min(times) <= shown_time <= max(times) else max(times)
    return PendingNode(
        node.kind,
        thread_id,
        node.title,
        node.summary,
        tuple(node.keywords[:MAX_KEYWORDS]),
        tuple(node.entities),
        node.importance,
        node.confidence,
        ids,
        time_ms,
        Origin.MODEL,
    )


def _mentions(segment: Segment, ids: Sequence[int], index: VlmIndex) -> tuple[EntityMention, ...]:
    """Return the index's entities that an event's words or screens name, since the index lists those of all segments
    together.

    A single segment gets all of them.
    """
    words = [segment.event.title, segment.event.summary, *segment.keywords]
    words += [text for _, finding in segment.derived.by_kind() for text in (finding.title, finding.summary)]
    words += [
        text
        for shot in index.screenshots
        if shot.screenshot_id in ids
        for text in (shot.ocr_text, *shot.ui_text_snippets)
    ]
    text = "\n".join(words).casefold()
    alone = len(index.segments) == 1
    return tuple(EntityMention(name=name) for name in index.entities if alone or _named(name.casefold(), text))


def _named(name: str, text: str) -> bool:
    """Whether the text contains the name, as whole words if it is ASCII."""
    if not name.isascii():
        return name in text
    return re.search(rf"(?<![a-z0-9_]){re.escape(name)}(?![a-z0-9_])", text) is not None


def _shown(facts: BatchFacts, segment: Segment) -> tuple[int, ...]:
    """Return our ids of the segment's screenshots that are still in the batch."""
    return tuple(facts.screens[screen].id for screen in segment.screen_ids if screen in facts.screens)


def _finished(facts: BatchFacts, drafts: Sequence[_Draft], notes: tuple[str, ...]) -> Expansion:
    """Add origin keys: `ctx_node:BATCH:ss:SCREENSHOTS:KIND:ORDINAL`. The ordinal counts the nodes of a kind, so
    that all keys differ. Rule: docs/sources/screenshots.md#nodes."""
    ordinals: Counter[NodeKind] = Counter()
    keys: dict[int, str] = {}
    nodes = []
    for draft in drafts:
        node = draft.node
        shots = ",".join(map(str, node.screenshot_ids))
        key = f"ctx_node:{facts.idempotency_key}:ss:{shots}:{node.kind.value}:{ordinals[node.kind]}"
        ordinals[node.kind] += 1
        keys[id(draft)] = key
        nodes.append(replace(node, origin_key=key))
    edges = [PendingEdge(keys[id(draft)], keys[id(draft.parent)]) for draft in drafts if draft.parent]
    edges += [
        PendingEdge(keys[id(draft)], keys[id(other)], kind) for draft in drafts for other, kind in draft.other_edges
    ]
    return Expansion(tuple(nodes), tuple(dict.fromkeys(edges)), notes)
