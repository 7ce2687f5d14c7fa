import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.flows.screenshots.rules.expansion import (
    Expansion,
    PendingNode,
    direct,
    evidence_of,
    expanded,
    read_expansion,
    usable_expansion,
    with_threads,
)
from pipeline.flows.screenshots.rules.schemas import ExpandReply, VlmIndex
from pipeline.flows.screenshots.states import NodeKind, Origin
from pipeline.providers.replies import BadReply
from tests.unit.screenshots.factories import BASE_MS, facts, index, parsed, segment

K = NodeKind
FACTS = facts()


def node(kind: str = "event", title: str = "Tests", shots: tuple[int, ...] = (101,), **changes: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "title": title,
        "summary": "…",
        "keywords": ["a"],
        "entities": [{"name": "Ann"}],
        "importance": 7,
        "confidence": 8,
        "screenshot_ids": list(shots),
        "event_time": BASE_MS + 1000,
    } | changes


def edge(start: int, end: int, kind: str = "derived_from") -> dict[str, Any]:
    return {"from_index": start, "to_index": end, "edge_type": kind}


def expand(nodes: list[dict[str, Any]], edges: list[dict[str, Any]] | None = None, *segments: Any) -> Expansion:
    analysis = VlmIndex(segments=list(segments) or [parsed("Tests", (1, 2))])
    reply = ExpandReply.model_validate({"nodes": nodes, "edges": edges or []})
    return expanded(FACTS, with_threads(analysis, FACTS).value, reply, analysis)


def test_threads_follow_the_hint_if_the_history_has_them_and_are_the_same_on_a_retry() -> None:
    old = parsed("Old", merge_hint={"decision": "merge", "thread_id": "thread_old"})
    unknown = parsed("Unknown", merge_hint={"decision": "MERGE", "thread_id": "thread_nowhere"})
    none = parsed("None", merge_hint={"decision": "MERGE"})
    new = parsed("New", merge_hint={"decision": "NEW", "thread_id": "thread_old"})
    analysis = VlmIndex(segments=[old, unknown, none, new])
    read = with_threads(analysis, FACTS)
    threads = [thread for _, thread in read.value]
    assert threads[0] == "thread_old"
    assert len(set(threads)) == 4
    assert len(read.notes) == 2
    assert with_threads(analysis, FACTS) == read


def test_direct_conversion_makes_an_event_and_its_findings_with_edges_and_one_thread() -> None:
    analysis = VlmIndex.model_validate(index(segment("Penstock tests", (1, 3))))
    expansion = direct(FACTS, with_threads(analysis, FACTS).value, analysis)
    event, fact = expansion.nodes
    assert (event.kind, fact.kind) == (K.EVENT, K.KNOWLEDGE)
    assert (event.screenshot_ids, event.event_time_ms) == ((101, 103), BASE_MS + 3000)
    assert event.thread_id == fact.thread_id
    assert [entity.name for entity in event.entities] == ["Penstock"]
    assert [(entity.from_key, entity.to_key) for entity in expansion.edges] == [(fact.origin_key, event.origin_key)]
    assert event.origin_key == "ctx_node:vlm_batch:screen:1:1-5:ab:ss:101,103:event:0"
    assert event.made_by is Origin.DIRECT


def test_an_event_mentions_the_entities_that_its_words_or_its_screens_name() -> None:
    analysis = VlmIndex.model_validate(
        {
            "segments": [segment("Writing to Ann", (1,)), segment("Reading", (2,))],
            "entities": ["Ann", "Anna", "Bill-7", "张三", "Nobody"],
            "screenshots": [{"screenshot_id": 102, "ocr_text": "bill-7 由张三支付"}],
        }
    )
    events = [
        pending
        for pending in direct(FACTS, with_threads(analysis, FACTS).value, analysis).nodes
        if pending.kind is K.EVENT
    ]
    assert [[name.name for name in pending.entities] for pending in events] == [["Ann"], ["Bill-7", "张三"]]


def test_origin_keys_are_unique_and_reproducible() -> None:
    twins = VlmIndex(segments=[parsed("Same", (1,)), parsed("Same", (1,))])
    expansion = direct(FACTS, with_threads(twins, FACTS).value, twins)
    keys = [pending.origin_key for pending in expansion.nodes]
    assert len(set(keys)) == len(keys) == 4
    assert direct(FACTS, with_threads(twins, FACTS).value, twins) == expansion


@pytest.mark.parametrize("link", [edge(0, 1), edge(1, 0)])
def test_edges_of_either_direction_point_from_finding_to_event(link: dict[str, Any]) -> None:
    expansion = expand([node(), node("plan", "Later", ())], [link])
    event, plan = expansion.nodes
    assert plan.thread_id == event.thread_id
    assert plan.screenshot_ids == event.screenshot_ids
    assert [(drawn.from_key, drawn.to_key) for drawn in expansion.edges] == [(plan.origin_key, event.origin_key)]


def test_findings_without_an_edge_belong_to_the_event_that_shares_most_screenshots() -> None:
    parts = (parsed("A", (1, 2)), parsed("B", (4, 5)))
    expansion = expand(
        [node(title="A", shots=(101,)), node(title="B", shots=(104, 105)), node("state", "S", (105,))], None, *parts
    )
    assert expansion.nodes[2].thread_id == expansion.nodes[1].thread_id != expansion.nodes[0].thread_id


def test_unknown_screenshots_times_and_threads_are_corrected() -> None:
    wrong = node(shots=(101, 999), thread_id="thread_made_up", event_time=5)
    expansion = expand([wrong])
    assert expansion.nodes[0].screenshot_ids == (101,)
    assert expansion.nodes[0].event_time_ms == BASE_MS + 1000
    assert expansion.nodes[0].thread_id.startswith("thread_")
    assert expansion.nodes[0].thread_id != "thread_made_up"
    assert len(expansion.notes) == 2


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), -1e300])
def test_invalid_times_become_the_last_screenshots(moment: float) -> None:
    assert expand([node(event_time=moment)]).nodes[0].event_time_ms == BASE_MS + 1000


def test_segments_that_the_text_model_left_out_become_nodes_directly() -> None:
    expansion = expand([node()], None, parsed("Tests", (1,)), parsed("Mail", (2,)))
    assert [(pending.title, pending.made_by) for pending in expansion.nodes if pending.kind is K.EVENT] == [
        ("Tests", Origin.MODEL),
        ("Mail", Origin.DIRECT),
    ]
    assert any("the text model left out" in note for note in expansion.notes)


def test_two_segments_of_the_same_screens_get_an_event_each() -> None:
    expansion = expand([node(title="A"), node(title="B")], None, parsed("A", (1,)), parsed("B", (1,)))
    assert [pending.title for pending in expansion.nodes] == ["A", "B"]
    assert len({pending.thread_id for pending in expansion.nodes}) == 2


def test_edges_to_unknown_or_equal_nodes_are_dropped_and_others_kept() -> None:
    expansion = expand(
        [node(title="A"), node(title="B", shots=(102,))],
        [edge(0, 9), edge(-1, 0), edge(0, 0, "causes"), edge(0, 1, "causes"), edge(0, 1, "causes")],
    )
    assert [(pending.from_key, pending.to_key, pending.edge_type) for pending in expansion.edges] == [
        (expansion.nodes[0].origin_key, expansion.nodes[1].origin_key, "causes")
    ]


def test_a_reply_without_an_event_is_unusable() -> None:
    with pytest.raises(BadReply, match="event"):
        read_expansion(json.dumps({"nodes": [node("plan")]}))
    assert usable_expansion(json.dumps({"nodes": [node("plan")]})) is None


def test_valid_nodes_of_a_reply_are_kept_with_the_edges_between_them() -> None:
    nodes = [{"kind": "rumour"}, node(), node("plan", "Later")]
    text = json.dumps({"nodes": nodes, "edges": [edge(2, 1), edge(0, 1)]})
    with pytest.raises(BadReply):
        read_expansion(text)
    reply = usable_expansion(text)
    assert reply is not None
    assert [pending.title for pending in reply.nodes] == ["Tests", "Later"]
    assert [(pending.from_index, pending.to_index) for pending in reply.edges] == [(1, 0)]


def test_a_deleted_screenshot_affects_no_other() -> None:
    analysis = VlmIndex(segments=[parsed("Both", (2, 3)), parsed("Gone", (5,))])
    expansion = direct(facts(2), with_threads(analysis, facts(2)).value, analysis)
    assert [(pending.title, pending.screenshot_ids) for pending in expansion.nodes if pending.kind is K.EVENT] == [
        ("Both", (102,))
    ]


def test_evidence_joins_facts_from_capture_and_model() -> None:
    packs = evidence_of(VlmIndex.model_validate(index(segment())), FACTS)
    assert [pack.screenshot_id for pack in packs] == [101, 102, 103, 104, 105]
    assert (packs[0].app_hint, packs[0].ocr_text, packs[0].ui_text_snippets) == ("VSCode", "text", ("Save",))
    assert packs[1].ocr_text == ""


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(K)), st.lists(st.integers(99, 107), max_size=4), st.sampled_from(["", "t", "x"])
        ),
        max_size=8,
    ),
    st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), max_size=6),
    st.lists(st.sets(st.integers(1, 5), min_size=1), min_size=1, max_size=4),
)
def test_every_segment_has_an_event_for_any_reply(
    nodes: list[tuple[NodeKind, list[int], str]], edges: list[tuple[int, int]], screens: list[set[int]]
) -> None:
    reply_nodes = [node(kind.value, "n", tuple(shots), thread_id=thread) for kind, shots, thread in nodes]
    parts = [parsed(f"S{place}", tuple(sorted(some))) for place, some in enumerate(screens)]
    expansion = expand(reply_nodes, [edge(*pair) for pair in edges], *parts)
    events: list[PendingNode] = [pending for pending in expansion.nodes if pending.kind is K.EVENT]
    threads = with_threads(VlmIndex(segments=parts), FACTS).value
    assert {thread for _, thread in threads} == {pending.thread_id for pending in events}
    keys = {pending.origin_key for pending in expansion.nodes}
    assert len(keys) == len(expansion.nodes)
    assert all(
        pending.screenshot_ids and set(pending.screenshot_ids) <= set(FACTS.times) for pending in expansion.nodes
    )
    assert all({link.from_key, link.to_key} <= keys for link in expansion.edges)
    by_key = {pending.origin_key: pending for pending in expansion.nodes}
    assert all(by_key[link.from_key].thread_id == by_key[link.to_key].thread_id for link in expansion.edges)
