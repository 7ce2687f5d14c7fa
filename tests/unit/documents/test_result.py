import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.views import plain
from pipeline.flows.documents.rules.result import manifest, merge_markdown
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import AttemptView, DocumentView, PageView

NOW = datetime(2026, 1, 20, 12, 0, tzinfo=UTC)
RULE = "\n\n---\n\n"


def page(number: int, content: str = "", status: PageStatus = PageStatus.COMPLETED, **values: Any) -> dict[str, Any]:
    view = PageView(
        page=number,
        page_source=number,
        status=status,
        provider="local",
        model="",
        content=content,
        error=None,
        attempts=1,
        retry_count=0,
        worker_id=None,
        next_run_at=None,
        updated_at=NOW,
    )
    return plain(replace(view, **values))


def attempt(number: int, **values: Any) -> dict[str, Any]:
    view = AttemptView(
        id=number,
        page=number,
        page_source=number,
        provider="local",
        model="m",
        prompt_hash="",
        cached=False,
        status="completed",
        effective=True,
        error=None,
        text="the text",
        input_tokens=0,
        output_tokens=0,
        latency_ms=0,
        worker_id="host:1:a",
        created_at=NOW,
    )
    return plain(replace(view, **values))


def document(**values: Any) -> dict[str, Any]:
    view = DocumentView(
        id="d1",
        filename="report.pdf",
        source_path="",
        type="pdf",
        status=DocumentStatus.COMPLETED,
        progress=100,
        pages=2,
        completed_count=2,
        failed_count=0,
        page_range="",
        provider="local",
        model="",
        model_name="local",
        worker_id=None,
        merged_path="/output/d1/report.md",
        error=None,
        allow_partial=False,
        size_bytes=10,
        created_at=NOW,
        updated_at=NOW,
        started_at=NOW,
        finished_at=NOW,
    )
    return plain(replace(view, **values))


def test_pages_are_merged_in_the_design_s_format_to_the_letter() -> None:
    merged = merge_markdown([page(1, "# One"), page(2, "Two\n\nlines")])
    assert merged == "<!-- Page 1 -->\n\n# One\n\n---\n\n<!-- Page 2 -->\n\nTwo\n\nlines\n"


def test_a_page_whose_retry_failed_keeps_its_older_text_in_the_result() -> None:
    merged = merge_markdown([page(1, "kept", PageStatus.FAILED, error="refused"), page(2, "", PageStatus.FAILED)])
    assert "<!-- the last retry of this page failed; this text is older -->\n\nkept" in merged
    assert "Page 1 is missing" not in merged
    assert "Page 2 is missing" in merged


def test_pages_are_put_in_order() -> None:
    assert merge_markdown([page(10, "j"), page(2, "b"), page(1, "a")]) == merge_markdown(
        [page(1, "a"), page(2, "b"), page(10, "j")]
    )


def test_line_ends_around_a_page_do_not_change_the_format_but_indents_stay() -> None:
    assert merge_markdown([page(1, "\n\n    code\n\n\n"), page(2, "")]) == (
        "<!-- Page 1 -->\n\n    code\n\n---\n\n<!-- Page 2 -->\n\n\n"
    )


def test_a_missing_page_is_marked_visibly_with_its_reason_in_one_line() -> None:
    gap = page(2, "", PageStatus.FAILED, error="the service said:\n  500   no")
    assert merge_markdown([page(1, "a"), gap]) == (
        "<!-- Page 1 -->\n\na\n\n---\n\n<!-- Page 2 -->\n\n> **[Page 2 is missing: the service said: 500 no]**\n"
    )


@pytest.mark.parametrize(
    ("error", "written"),
    [
        ("see ![x](http://evil/p.png)", r"see ![x\](http://evil/p.png)"),
        ("[key](javascript:f()) <img src=x> <https://evil>", r"[key\](javascript:f()) \<img src=x> \<https://evil>"),
        ("end]** # `rm -rf` *x* &lt;", r"end]\*\* # \`rm -rf\` \*x\* \&lt;"),
        ("a\x1b]0;t\x07b\u202ec\n# Heading\n\n- item", r"a\x1b]0;t\x07b\u202ec # Heading - item"),
        ("<!-- Page 9 -->", r"\<!-- Page 9 -->"),
    ],
)
def test_a_services_error_message_is_escaped_in_the_result(error: str, written: str) -> None:
    gap = page(1, "", PageStatus.FAILED, error=error)
    assert merge_markdown([gap]) == f"<!-- Page 1 -->\n\n> **[Page 1 is missing: {written}]**\n"


def test_pages_have_the_numbers_of_the_file() -> None:
    gap = page(2, "", PageStatus.FAILED, error="no", page_source=601)
    merged = merge_markdown([page(1, "a", page_source=600), gap])
    assert "<!-- Page 600 -->" in merged
    assert "<!-- Page 601 -->\n\n> **[Page 601 is missing: no]**" in merged


def test_a_page_that_was_never_tried_is_marked_too() -> None:
    assert "> **[Page 1 is missing: not converted]**" in merge_markdown([page(1, status=PageStatus.PENDING)])


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8")), min_size=1, max_size=30))
def test_every_text_is_in_the_merged_one_exactly_under_its_page(texts: list[str]) -> None:
    parts = [f"<!-- Page {number} -->\n\n{text}" for number, text in enumerate(texts, 1)]
    assert merge_markdown([page(number, text) for number, text in enumerate(texts, 1)]) == RULE.join(parts) + "\n"


def test_the_manifest_sums_up_pages_and_attempts() -> None:
    attempts = [
        attempt(1, input_tokens=10, output_tokens=5, latency_ms=100, cost=0.0001),
        attempt(2, input_tokens=20, latency_ms=50, cost=0.0002, status="transient", error="busy", text=""),
        attempt(3, output_tokens=7, latency_ms=1, cached=True, page=2),
    ]
    facts = manifest(document(), [page(1, "four"), page(2, "中文")], attempts)
    assert facts["version"] == 1
    assert facts["totals"] == {
        "pages": 2,
        "completed": 2,
        "failed": 0,
        "attempts": 3,
        "doubtful": 0,
        "uncertain": 0,
        "cached": 1,
        "input_tokens": 30,
        "output_tokens": 12,
        "conversion_ms": 151,
        "cost": 0.0003,
    }
    assert [entry["characters"] for entry in facts["pages"]] == [4, 2]
    assert [[tried["id"] for tried in entry["attempts"]] for entry in facts["pages"]] == [[1], [2, 3]]
    failed = facts["pages"][1]["attempts"][0]
    assert (failed["status"], failed["error"]) == ("transient", "busy")


def test_the_manifest_says_whether_the_document_is_whole() -> None:
    whole = manifest(document(), [], [])
    partial = manifest(document(status=DocumentStatus.PARTIAL_FAILED), [], [])
    assert (whole["document"]["complete"], partial["document"]["complete"]) == (True, False)
    assert (whole["document"]["status"], partial["document"]["status"]) == ("COMPLETED", "PARTIAL_FAILED")


def test_the_manifest_is_json_without_the_texts() -> None:
    facts = manifest(document(), [page(1, "content of the page")], [attempt(1)])
    written = json.dumps(facts)
    assert "content of the page" not in written
    assert "the text" not in written
    assert json.loads(written) == facts
    assert facts["document"]["created_at"] == "2026-01-20T12:00:00+00:00"
