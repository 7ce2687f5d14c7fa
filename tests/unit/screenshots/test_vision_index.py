import json
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.flows.screenshots.rules.expansion import read_expansion, usable_expansion
from pipeline.flows.screenshots.rules.node_merge import read_merge
from pipeline.flows.screenshots.rules.schemas import (
    EXPAND_SCHEMA,
    INDEX_SCHEMA,
    MERGE_SCHEMA,
    EntityMention,
    MergeReply,
    SegmentEvent,
    VlmIndex,
)
from pipeline.flows.screenshots.rules.vision_reply import best_index, read_index, usable_index
from pipeline.providers.replies import BadReply
from tests.unit.screenshots.factories import index, segment

SENT = {1: 101, 2: 102, 3: 103}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("wrap", ["{}", "```json\n{}\n```", "  {}\n"])
def test_reply_of_the_design_is_read_bare_or_fenced(wrap: str) -> None:
    reading = read_index(wrap.replace("{}", json.dumps(index(segment()))), SENT)
    (parsed,) = reading.value.segments
    assert (parsed.event.title, parsed.screen_ids, parsed.merge_hint.decision) == ("Writing a test", [1, 2], "NEW")
    assert reading.value.screenshots[0].app_guess is not None
    assert reading.notes == ()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "JSON|deeply"),
        ("[]", "not a JSON object"),
        ("{}", "segments"),
        ('{"segments": [{"screen_ids": [1], "event": {"title": ""}}]}', "segments.0.event.title"),
        ('{"segments": [{"screen_ids": [true], "event": {"title": "x"}}]}', "must be a number"),
        ('{"segments": [{"screen_ids": [9], "event": {"title": "x"}}]}', "none names a screenshot that was sent"),
        ('{"segments": [' + "1" * 5000 + "]}", "segments.0"),
        (" " * 1_000_001, "characters"),
        ('{"\\ud800": 1}', "segments"),
        ('{"segments": [{"\\ud800": "\\ud800"}]}', "segments.0"),
    ],
)
def test_an_invalid_reply_is_refused_with_the_reason(reply: str, says: str) -> None:
    with pytest.raises(BadReply, match=says):
        read_index(reply, SENT)


def test_a_reply_without_segments_is_valid() -> None:
    assert read_index('{"segments": []}', SENT).value.segments == []


def test_unsent_screenshots_are_left_out_and_named() -> None:
    reply = index(segment("Kept", (1, 9)), segment("Gone", (7,)), shown=(101, 999, 101))
    reading = read_index(json.dumps(reply), SENT)
    assert [parsed.screen_ids for parsed in reading.value.segments] == [[1]]
    assert [parsed.screenshot_id for parsed in reading.value.screenshots] == [101]
    assert len(reading.notes) == 4
    assert any("999" in note for note in reading.notes)


@pytest.mark.parametrize(("value", "score"), [(7, 7), ("8", 8), (11, 10), (-2, 0), (6.6, 7), (None, 5), ("7.5", 8)])
def test_scores_are_moved_into_their_range(value: object, score: int) -> None:
    assert SegmentEvent.model_validate({"title": "x", "importance": value}).importance == score


@pytest.mark.parametrize("value", [True, "high", [], float("nan"), float("inf")])
def test_scores_that_are_not_numbers_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="0 to 10"):
        SegmentEvent.model_validate({"title": "x", "importance": value})


def test_texts_are_fit_for_every_database() -> None:
    event = SegmentEvent.model_validate({"title": " a\x00b\ud800 ", "summary": "x" * 5000})
    assert event.title == "ab?"
    assert len(event.summary) == 2000


def test_valid_parts_of_an_invalid_reply_are_kept() -> None:
    bad = segment("Half", (2,), derived={"knowledge": [{"title": "Kept"}, {"no": "title"}, 5], "state": "?"})
    reply = index(segment(), {"screen_ids": [1]}, {}, bad)
    with pytest.raises(BadReply):
        read_index(json.dumps(reply), SENT)
    reading = usable_index(json.dumps(reply), SENT)
    assert reading is not None
    assert [parsed.event.title for parsed in reading.value.segments] == ["Writing a test", "Half"]
    assert [parsed.title for parsed in reading.value.segments[1].derived.knowledge] == ["Kept"]


def test_parts_before_a_truncation_are_kept() -> None:
    text = json.dumps(index(segment("One"), segment("Two", (3,))))
    cut = text[: text.index("Two") + 2]
    reading = usable_index(cut, SENT)
    assert reading is not None
    assert [parsed.event.title for parsed in reading.value.segments] == ["One"]
    assert usable_index(text[:20], SENT) is None


def test_after_a_repair_the_valid_reply_wins_else_the_one_with_most_valid_parts() -> None:
    whole, bad = json.dumps(index(segment("Whole"))), {"screen_ids": [1]}
    double = json.dumps(index(segment("One"), segment("Two"), bad))
    single = json.dumps(index(segment("Only"), bad))
    assert best_index([double, whole], SENT).value.segments[0].event.title == "Whole"
    assert best_index([whole, double], SENT).value.segments[0].event.title == "Whole"
    best = best_index([double, single], SENT)
    assert [part.event.title for part in best.value.segments] == ["One", "Two"]
    assert "valid parts" in best.notes[-1]
    assert [part.event.title for part in best_index([single, "sorry"], SENT).value.segments] == ["Only"]
    with pytest.raises(BadReply, match="not JSON"):
        best_index(["sorry", ""], SENT)


def test_numbers_beyond_floats_are_clamped_like_others() -> None:
    assert SegmentEvent.model_validate({"title": "x", "importance": 10**400}).importance == 10
    assert SegmentEvent.model_validate({"title": "x", "importance": -(10**400)}).importance == 0


def test_names_of_entities_may_be_bare() -> None:
    reply = MergeReply.model_validate({"title": "x", "entities": ["Ann", {"name": "Bob", "entityType": "person"}]})
    assert [(entity.name, entity.entity_type) for entity in reply.entities] == [("Ann", ""), ("Bob", "person")]
    assert EntityMention(name="Ann", entity_type="person").model_dump(by_alias=True)["entityType"] == "person"


def test_the_sent_schemas_match_the_parsed_ones() -> None:
    reply = index(segment())
    reply["segments"][0]["merge_hint"] = {"decision": "NEW", "thread_id": None}
    jsonschema.validate(reply, INDEX_SCHEMA)
    node = {
        "kind": "event",
        "thread_id": None,
        "title": "x",
        "summary": "",
        "keywords": [],
        "entities": [],
        "importance": 1,
        "confidence": 1,
        "screenshot_ids": [1],
        "event_time": None,
    }
    jsonschema.validate({"nodes": [node], "edges": []}, EXPAND_SCHEMA)
    read_expansion(json.dumps({"nodes": [node], "edges": []}))
    merged = {"title": "x", "summary": "", "keywords": [], "entities": []}
    jsonschema.validate(merged, MERGE_SCHEMA)
    read_merge(json.dumps(merged))


def mutated(reply: dict[str, Any], path: list[int], value: object) -> dict[str, Any]:
    """Replace the value at `path` in a reply."""
    at: Any = reply
    for step in path[:-1]:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        inner = at[keys[step % len(keys)]] if keys else None
        if not isinstance(inner, dict | list) or not inner:
            break
        at = inner
    keys = list(at) if isinstance(at, dict) else list(range(len(at)))
    at[keys[path[-1] % len(keys)]] = value
    return reply


@given(st.text() | ANY_JSON.map(json.dumps))
def test_parsing_any_text_raises_only_bad_reply(text: str) -> None:
    for read in (lambda: read_index(text, SENT), lambda: read_expansion(text), lambda: read_merge(text)):
        with suppress(BadReply):
            read()
    usable_index(text, SENT)
    usable_expansion(text)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), ANY_JSON, st.integers(0, 2000))
def test_a_damaged_reply_is_parsed_or_refused_and_its_valid_segment_is_kept(
    path: list[int], value: object, cut: int
) -> None:
    sound = segment("Sound", (3,))
    text = json.dumps({"segments": [sound, mutated(index(segment())["segments"][0], path, value)]})
    for damaged in (text, text[: max(len(json.dumps(sound)) + 14, cut)]):
        reading = usable_index(damaged, SENT)
        assert reading is not None
        assert reading.value.segments[0].event.title == "Sound"
    with suppress(BadReply):
        whole = read_index(text, SENT).value
        assert VlmIndex.model_validate_json(whole.model_dump_json()) == whole
