import json
from typing import Any

import pytest

from pipeline.flows.screenshots.rules.node_merge import (
    MergeNode,
    by_model,
    by_rules,
    merge_entities,
    merge_text,
    read_merge,
)
from pipeline.flows.screenshots.rules.schemas import EntityMention
from pipeline.flows.screenshots.states import NodeKind
from pipeline.providers.replies import BadReply


def node(number: int, **changes: Any) -> MergeNode:
    known: dict[str, Any] = {
        "id": number,
        "kind": NodeKind.EVENT,
        "thread_id": "t",
        "title": f"Title {number}",
        "event_time_ms": number,
    }
    return MergeNode(**known | changes)


def test_merging_by_rules_follows_the_design_and_names_the_node_itself() -> None:
    old = node(
        1,
        title="Tests",
        summary="Old.",
        keywords=("a", "b"),
        importance=3,
        confidence=9,
        screenshot_ids=(1, 2),
        merged_from_ids=(7,),
    )
    new = node(
        2,
        title="Writing tests",
        summary="New.",
        keywords=("B", "c"),
        importance=5,
        confidence=1,
        screenshot_ids=(2, 3),
        merged_from_ids=(8, 1),
    )
    merged = by_rules(old, new)
    assert (merged.id, merged.title, merged.summary) == (1, "Writing tests", "Old.\nNew.")
    assert merged.keywords == ("a", "b", "c")
    assert (merged.importance, merged.confidence, merged.event_time_ms) == (5, 9, 2)
    assert merged.screenshot_ids == (1, 2, 3)
    assert merged.merged_from_ids == (7, 2, 8)


def test_merging_twice_changes_nothing_more() -> None:
    old, new = node(1, title="A", summary="x"), node(2, title="B", summary="y")
    once = by_rules(old, new)
    assert by_rules(once, new) == once


def test_the_models_words_come_first_and_the_rules_fill_gaps() -> None:
    reply = read_merge(json.dumps({"title": "Both", "keywords": ["z"], "entities": ["Ann"]}))
    merged = by_model(node(1, summary="s", keywords=("a",)), node(2), reply)
    assert (merged.title, merged.summary, merged.keywords) == ("Both", "s", ("z", "a"))
    assert [entity.name for entity in merged.entities] == ["Ann"]
    assert merged.merged_from_ids == (2,)
    with pytest.raises(BadReply):
        read_merge('{"summary": "no title"}')


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ("A", "B", "A / B"),
        ("Tests", "tests", "Tests"),
        ("", "B", "B"),
        ("x" * 9, "y" * 8, "x" * 9),
        ("x" * 30, "y", "x" * 14 + "…"),
    ],
)
def test_texts_are_joined_if_they_fit_else_the_longer_stays(first: str, second: str, merged: str) -> None:
    assert merge_text(first, second, 15, " / ") == merged


def test_a_repeated_entity_keeps_its_higher_confidence_and_a_type() -> None:
    first = [EntityMention(name="Ann", entity_type="person", confidence=3)]
    second = [EntityMention(name="ＡＮＮ", confidence=8), EntityMention(name="Bob")]
    assert [(entity.name, entity.entity_type, entity.confidence) for entity in merge_entities(first, second)] == [
        ("ＡＮＮ", "person", 8),
        ("Bob", "", 5),
    ]
