"""Replies and batches for tests of the rules."""

from datetime import UTC, datetime
from typing import Any

from pipeline.flows.screenshots.rules.batches import Shot
from pipeline.flows.screenshots.rules.expansion import BatchFacts
from pipeline.flows.screenshots.rules.schemas import Segment

NOW = datetime(2026, 1, 12, 16, tzinfo=UTC)
BASE_MS = 1_768_233_600_000


def shot(number: int, **changes: Any) -> Shot:
    """Make screenshot `100 + number`, captured `number` seconds after the first."""
    known: dict[str, Any] = {"id": 100 + number, "ts_ms": BASE_MS + number * 1000, "accepted_at": NOW}
    return Shot(**known | changes)


def facts(count: int = 5, threads: tuple[str, ...] = ("thread_old",)) -> BatchFacts:
    """Make the facts of a batch of screens 1 to `count`."""
    screens = {number: shot(number) for number in range(1, count + 1)}
    return BatchFacts("vlm_batch:screen:1:1-5:ab", "screen:1", screens, frozenset(threads))


def segment(title: str = "Writing a test", screens: tuple[int, ...] = (1, 2), **changes: Any) -> dict[str, Any]:
    """Make a segment of a model's reply."""
    return {
        "segment_id": "seg_1",
        "screen_ids": list(screens),
        "event": {"title": title, "summary": f"{title} in an editor.", "importance": 7, "confidence": 8},
        "derived": {"knowledge": [{"title": "Fact", "summary": "Tests run"}], "state": [], "procedure": [], "plan": []},
        "merge_hint": {"decision": "NEW"},
        "keywords": ["test"],
    } | changes


def parsed(*args: Any, **changes: Any) -> Segment:
    return Segment.model_validate(segment(*args, **changes))


def index(*segments: dict[str, Any], shown: tuple[int, ...] = (101,)) -> dict[str, Any]:
    """Make a model's reply."""
    seen = [
        {
            "screenshot_id": shot,
            "ocr_text": "text",
            "ui_text_snippets": ["Save"],
            "app_guess": {"name": "VSCode", "confidence": 0.9},
        }
        for shot in shown
    ]
    return {"segments": list(segments), "entities": ["Penstock"], "screenshots": seen}
