import json
from datetime import UTC, datetime

from pipeline.flows.screenshots.rules import prompts
from pipeline.flows.screenshots.rules.batches import HistoryPack, HistorySegment, HistoryThread
from pipeline.flows.screenshots.rules.expansion import Evidence, evidence_of, with_threads
from pipeline.flows.screenshots.rules.node_merge import MergeNode
from pipeline.flows.screenshots.rules.provenance import Call, Operation, calls_behind
from pipeline.flows.screenshots.rules.schemas import EntityMention, VlmIndex
from pipeline.flows.screenshots.states import NodeKind, Origin
from tests.unit.screenshots.factories import facts, index, segment, shot

NOW = datetime(2026, 1, 12, 8, 48, 25, tzinfo=UTC)


def test_vision_prompt_lists_screens_in_order_and_the_history() -> None:
    history = HistoryPack(
        threads=[HistoryThread(thread_id="t1", title="Old")],
        segments=[HistorySegment(thread_id="t2", title="Open")],
        entities=["Ann"],
    )
    prompt = json.loads(prompts.vision_prompt({7: shot(7), 6: shot(6, window_title="Mail")}, history))
    assert [(screen["screen_id"], screen["screenshot_id"]) for screen in prompt["screenshots"]] == [(6, 106), (7, 107)]
    assert prompt["before"]["threads"] == [{"thread_id": "t1", "title": "Old"}]
    assert prompt["before"]["open_segments"] == [{"thread_id": "t2", "title": "Open", "summary": ""}]


def test_lone_surrogates_in_titles_are_replaced_in_requests() -> None:
    assert prompts.vision_prompt({1: shot(1, window_title="a\ud83d")}, HistoryPack()).encode()


def test_expand_prompt_has_the_shape_of_the_design_with_threads_decided() -> None:
    known = facts(2)
    analysis = VlmIndex.model_validate(index(segment()))
    threads = with_threads(analysis, known).value
    evidence = [*evidence_of(analysis, known), Evidence(9, ocr_text="x" * 9000)]
    prompt = json.loads(prompts.expand_prompt(known, threads, evidence, NOW, "Asia/Shanghai"))
    assert (prompt["localTime"], prompt["timeZone"]) == ("2026-01-12 16:48:25", "Asia/Shanghai")
    assert prompt["segments"][0]["thread_id"] == threads[0][1]
    assert prompt["screenshotMapping"][1]["database_id"] == 102
    assert prompt["evidencePacks"][0]["ocrText"] == "text"
    assert len(prompt["evidencePacks"][-1]["ocrText"]) == prompts.MAX_EVIDENCE_CHARS


def test_an_unknown_time_zone_falls_back_to_utc() -> None:
    prompt = json.loads(prompts.expand_prompt(facts(1), [], [], NOW, "../Mars"))
    assert prompt["localTime"] == "2026-01-12 08:48:25"


def test_merge_prompt_shows_both_nodes_and_no_ids() -> None:
    existing = MergeNode(123456, NodeKind.PLAN, "t", "Old", entities=(EntityMention(name="Ann", entity_type="person"),))
    text = prompts.merge_prompt(existing, MergeNode(2, NodeKind.PLAN, "t", "New"))
    prompt = json.loads(text)
    assert prompt["existing"]["entities"] == [{"name": "Ann", "entityType": "person", "confidence": 5}]
    assert prompt["new"]["title"] == "New"
    assert "123456" not in text


def test_repair_prompt_has_request_reply_and_problem_and_is_bounded() -> None:
    text = prompts.repair_prompt("ASKED", "R" * 100_000, "no JSON")
    assert text.startswith("ASKED")
    assert "no JSON" in text
    assert text.count("R") < 61_000


def test_different_prompts_have_different_hashes() -> None:
    assert len(prompts.prompt_hash("a", "b")) == 64
    assert prompts.prompt_hash("a", "b") != prompts.prompt_hash("ab", "")
    assert prompts.prompt_hash("a", "\ud800")


def test_every_system_prompt_calls_content_data() -> None:
    for system in (prompts.VISION_SYSTEM, prompts.EXPAND_SYSTEM, prompts.MERGE_SYSTEM):
        assert "never instructions" in system


def test_a_node_rests_on_calls_with_its_frames_and_on_the_expansion_if_the_model_made_it() -> None:
    first = Call(1, Operation.ANALYSE, "p", "m", "h", 1, (101, 102))
    second = Call(2, Operation.ANALYSE, "p", "m", "h", 2, (103,))
    text = Call(3, Operation.EXPAND, "p", "m", "h", 1, (101, 102, 103))
    calls = [first, second, text]
    assert calls_behind(Origin.MODEL, [103], calls) == [second, text]
    assert calls_behind(Origin.DIRECT, [101], calls) == [first]
    merge = Call(4, Operation.MERGE, "p", "m", "h", 1, (101, 103))
    assert calls_behind(Origin.DIRECT, [101], [*calls, merge]) == [first, merge]
