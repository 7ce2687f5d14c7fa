"""Pages and models made for documents: another pass after a bad reply, raw replies from the cache, parts of a page."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from pipeline.engine import kept_answers
from pipeline.engine.claims import Owner
from pipeline.engine.traces import AiCall
from pipeline.flows.documents import files, queries, service
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.work import merge
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.providers import gates
from pipeline.reading.replies import reply as replies
from pipeline.storage.context import Context
from tests.support.documents import attempts, document, insert_document, page_states, pages
from tests.support.provider_server import Fault, ProviderServer, Record
from tests.support.samples import text_pdf

GOOD = "# The mill\n\nWater turns a wheel."
LOOP = "# The mill\n\n" + "the wheel turns and the wheel turns and " * 200
BLOCKS = json.dumps(
    [
        {"bbox": [170, 220, 850, 260], "category": "Title", "text": "# The mill"},
        {"bbox": [170, 440, 850, 880], "category": "Text", "text": "Water turns a wheel."},
    ]
)
LAYOUT = (
    "<|box_start|>100 100 900 150<|box_end|><|ref_start|>title<|ref_end|><|rotate_up|>\n"
    "<|box_start|>100 200 900 400<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>\n"
    "<|box_start|>100 500 900 600<|box_end|><|ref_start|>table<|ref_end|><|rotate_up|>"
)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(picture_answer=lambda _: GOOD) as server:
        yield server


@pytest.fixture
def settings_env(provider: ProviderServer) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__AI__BASE_URL": provider.base_url,
        "PENSTOCK_PROVIDERS__AI__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__AI__PRICES": '{"*": {"input": 1.0, "output": 1.0}}',
        "PENSTOCK_PROVIDERS__AI__LIMITS": "1000/s",
    }


def submitted(context: Context, preset: str, text: str = "The mill", **profile: Any) -> str:
    """Return a document of one page for the provider `ai` with this preset."""
    known = context.settings.providers["ai"]
    context.settings.providers["ai"] = known.model_copy(update={"preset": preset, **profile})
    gates.sync(context)
    document_id = insert_document(context, pages=[PageStatus.PENDING], provider="ai")
    source = files.source_path(context.settings, document_id, "pdf")
    source.parent.mkdir(parents=True)
    text_pdf(source, [[text, "Water turns a wheel, and the wheel turns a stone."]])
    return document_id


def work(context: Context, document_id: str) -> None:
    """Handle one message."""
    guarded = gates.guarded_call(context, "vision.ai", uuid4().hex)
    owner = Owner("w:1:a", uuid4().hex)
    PageLane(context, document_id, "vision.ai", ["ai"], owner, guarded=guarded).run(quantum_s=0)


def calls(context: Context) -> list[Any]:
    with context.db.read() as session:
        return list(session.execute(select(AiCall.__table__).order_by(AiCall.id)))


def answers(*texts: str) -> Callable[[Record], str]:
    """Return an answer for each call in turn; the last one for all further calls."""
    left = list(texts)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def test_a_page_has_blocks_and_keeps_them_in_the_cache_without_another_call(
    context: Context, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.script.picture_answer = lambda _: BLOCKS
    first = submitted(context, "dots.ocr")
    work(context, first)
    layout = queries.layouts(context, first)[1]
    assert (layout["width"], layout["height"], layout["unit"]) == (612, 792, "pt")
    assert [block["type"] for block in layout["blocks"]] == ["heading", "paragraph"]
    left, _, right, _ = layout["blocks"][0]["bbox"]
    assert (left, right) == (pytest.approx(61.2, abs=2), pytest.approx(306, abs=2))
    (tried,) = attempts(context, first)
    assert tried.text == GOOD, "people see Markdown"
    assert tried.reply["parts"][0]["text"] == BLOCKS

    parse = replies.parse

    def better(*args: Any) -> Any:
        parsed = parse(*args)
        return parsed.__class__(**{**vars(parsed), "text": parsed.text + " Better."})

    monkeypatch.setattr("pipeline.providers.vision_pages.parse", better)
    second = submitted(context, "dots.ocr")
    work(context, second)
    assert len(provider.records) == len(calls(context)) == 1
    assert pages(context, second)[0].content == GOOD + " Better."
    assert queries.layouts(context, second)[1] == layout
    assert attempts(context, second)[0].cached


def test_a_reply_that_repeats_itself_is_broken_off_paid_for_and_asked_for_again(
    context: Context, provider: ProviderServer
) -> None:
    provider.script.picture_answer = answers(LOOP, GOOD)
    document_id = submitted(context, "general")
    work(context, document_id)
    assert page_states(context, document_id) == [PageStatus.COMPLETED]
    assert pages(context, document_id)[0].content == GOOD
    assert [record.body["temperature"] for record in provider.records] == [0.0, 0.3]
    bad, good = attempts(context, document_id)
    assert (bad.status, good.status, good.reply["preset"]) == ("permanent", "completed", "general")
    assert "repeats itself" in bad.error
    assert bad.cost > 0
    assert len(bad.text) < len(LOOP)
    first, second = calls(context)
    assert "tokens are estimated" in first.error
    assert document(context, document_id).cost == pytest.approx(first.cost + second.cost)


@pytest.mark.parametrize(
    ("reply", "why", "sent"),
    [
        ("A committee met on Tuesday and discussed the budget.", "has 8% of the page's words", 2),
        ("Вода вращает колесо, и колесо вращает камень.", "is in CYRILLIC, the page in LATIN", 3),
    ],
)
def test_a_reply_unlike_the_text_of_its_page_is_not_used(
    context: Context, provider: ProviderServer, reply: str, why: str, sent: int
) -> None:
    provider.script.picture_answer = lambda _: reply
    document_id = submitted(
        context,
        "general",
        "Millers of nine villages along this river ground barley, rye, oats, "
        "spelt, wheat, beans, chestnuts and acorns between two round stones",
    )
    work(context, document_id)
    (page,) = pages(context, document_id)
    assert why in page.fallback
    assert "Millers of nine villages" in page.content
    assert len(provider.records) == sent


def test_a_page_without_a_good_reply_is_converted_here_and_says_so(context: Context, provider: ProviderServer) -> None:
    provider.script.picture_answer = lambda _: LOOP
    document_id = submitted(context, "general")
    work(context, document_id)
    (page,) = pages(context, document_id)
    assert (page.status, page.doubtful) == (PageStatus.COMPLETED, True)
    assert "The mill" in page.content
    assert "repeats itself" in page.fallback
    assert len(provider.records) == 3
    tried = attempts(context, document_id)
    assert [(each.provider, each.status) for each in tried] == [("ai", "permanent")] * 3 + [("local", "completed")]
    assert merge.merge_document(context, document_id, Owner("m", "1"))
    manifest = json.loads(
        files.output_path(context.settings, document_id, "report.pdf").with_suffix(".manifest.json").read_text()
    )
    assert "repeats itself" in manifest["pages"][0]["fallback"]


def reply(content: str | None, finish_reason: str, reasoning: int = 0) -> Fault:
    details = {"reasoning_tokens": reasoning}
    usage = {"prompt_tokens": 1000, "completion_tokens": reasoning, "completion_tokens_details": details}
    message = {"role": "assistant", "content": content}
    return Fault(status=200, body={"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage})


def test_a_model_that_reasons_until_its_limit_gets_one_larger_request(
    context: Context, provider: ProviderServer
) -> None:
    provider.script.rule = lambda record: reply(None, "length", record.body["max_tokens"])
    document_id = submitted(context, "general")
    work(context, document_id)
    (page,) = pages(context, document_id)
    assert [record.body["max_tokens"] for record in provider.records] == [8192, 16384]
    assert (page.status, "The mill" in page.content) == (PageStatus.COMPLETED, True)
    assert "spent 16,384 of its 16,384 tokens on reasoning" in page.fallback
    assert all(word in page.fallback for word in ("REQUEST_FIELDS", "reasoning_effort", "chat_template_kwargs"))


@pytest.mark.parametrize("strikes", [2, 9])
def test_a_filter_gets_two_smaller_pictures_before_the_page_is_converted_here(
    context: Context, provider: ProviderServer, strikes: int
) -> None:
    provider.push(*[reply(None, "content_filter: RECITATION")] * strikes)
    provider.script.picture_answer = lambda _: GOOD
    document_id = submitted(context, "general")
    work(context, document_id)
    (page,) = pages(context, document_id)
    assert len({record.image_sha256 for record in provider.records}) == len(provider.records) == 3
    assert (page.status, "The mill" in page.content) == (PageStatus.COMPLETED, True)
    assert ("RECITATION" in (page.fallback or "")) == (strikes > 2)
    assert document(context, document_id).cost == pytest.approx(sum(call.cost for call in calls(context)))
    assert all(call.cost for call in calls(context))


def test_a_reply_that_is_cut_off_gets_more_tokens_and_then_half_a_page(
    context: Context, provider: ProviderServer
) -> None:
    provider.push(*[Fault(kind="truncated", text="# The mill")] * 2)
    provider.script.picture_answer = answers("# The mill", "Water turns a wheel.")
    document_id = submitted(context, "general")
    work(context, document_id)
    assert pages(context, document_id)[0].content == GOOD
    assert [record.body["max_tokens"] for record in provider.records] == [8192, 16384, 16384, 16384]
    assert [each.status for each in attempts(context, document_id)] == ["permanent", "permanent", "completed"]
    assert len(calls(context)) == 4


def test_a_page_that_lies_on_its_side_is_turned(context: Context, provider: ProviderServer) -> None:
    head = (
        "---\nprimary_language: en\nis_rotation_valid: {}\nrotation_correction: {}\nis_table: false\n"
        "is_diagram: false\n---\n"
    )
    provider.script.picture_answer = answers(head.format("false", 90) + "elim", head.format("true", 0) + GOOD)
    document_id = submitted(context, "olmocr-2")
    work(context, document_id)
    assert pages(context, document_id)[0].content == GOOD
    assert len({record.image_sha256 for record in provider.records}) == len(provider.records) == 2


def test_a_later_claim_goes_on_where_an_earlier_one_stopped(context: Context, provider: ProviderServer) -> None:
    provider.push(None, Fault(status=503))
    provider.script.picture_answer = answers(LOOP, GOOD)
    document_id = submitted(context, "general")
    work(context, document_id)
    assert [each.status for each in attempts(context, document_id)] == ["permanent", "transient"]
    with context.db.transaction() as session:
        session.execute(PAGES.update().values(next_run_at=None))
    work(context, document_id)
    assert pages(context, document_id)[0].content == GOOD
    assert [record.body["temperature"] for record in provider.records] == [0.0, 0.3, 0.3]


def test_no_call_is_paid_twice_by_a_worker_that_is_lost_between_two_calls(
    context: Context, provider: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.script.picture_answer = answers(LOOP, GOOD)
    document_id = submitted(context, "general")
    keep = kept_answers.keep

    def killed(*args: Any) -> Any:
        keep(*args)
        raise SystemExit

    monkeypatch.setattr(kept_answers, "keep", killed)
    with pytest.raises(SystemExit):
        work(context, document_id)
    monkeypatch.setattr(kept_answers, "keep", keep)
    with context.db.transaction() as session:
        session.execute(PAGES.update().values(status=PageStatus.PENDING, claim_id=None, worker_id=None))
    work(context, document_id)
    assert pages(context, document_id)[0].content == GOOD
    assert len(provider.records) == len(calls(context)) == 2
    assert list(context.settings.answer_dir.iterdir()) == []


def test_a_model_of_two_steps_reads_the_parts_that_it_finds(context: Context, provider: ProviderServer) -> None:
    replies_to = {"Layout": LAYOUT, "Text": "The mill", "Table": "<fcel>a<fcel>b<nl><fcel>1<fcel>2<nl>"}
    provider.script.picture_answer = lambda record: next(
        text for word, text in replies_to.items() if f"\n{word} " in record.prompt
    )
    document_id = submitted(context, "mineru2.5")
    work(context, document_id)
    (page,) = pages(context, document_id)
    assert page.content == "# The mill\n\nThe mill\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert [block["type"] for block in queries.layouts(context, document_id)[1]["blocks"]] == [
        "heading",
        "paragraph",
        "table",
    ]
    assert len(calls(context)) == 4
    (tried,) = attempts(context, document_id)
    assert tried.cost == pytest.approx(sum(call.cost for call in calls(context)))
    second = submitted(context, "mineru2.5")
    work(context, second)
    assert (len(provider.records), pages(context, second)[0].content) == (4, page.content)


@pytest.mark.parametrize("preset", ["paddleocr-vl", "glm-ocr"])
def test_our_layout_finds_the_parts_for_models_that_read_one_at_a_time(
    context: Context, provider: ProviderServer, preset: str
) -> None:
    provider.script.picture_answer = lambda _: "Water turns a wheel."
    document_id = submitted(context, preset)
    work(context, document_id)
    assert page_states(context, document_id) == [PageStatus.COMPLETED]
    assert "Water turns a wheel." in pages(context, document_id)[0].content
    boxes = [block["bbox"] for block in queries.layouts(context, document_id)[1]["blocks"]]
    assert boxes
    assert all(0 <= left < right <= 612 and 0 <= top < bottom <= 792 for left, top, right, bottom in boxes)


def test_an_attempt_that_is_used_again_brings_its_blocks(context: Context, provider: ProviderServer) -> None:
    provider.script.picture_answer = lambda _: BLOCKS
    document_id = submitted(context, "dots.ocr")
    work(context, document_id)
    layout = queries.layouts(context, document_id)
    merge.merge_document(context, document_id, Owner("m", "1"))
    (tried,) = attempts(context, document_id)
    service.promote(context, document_id, 1, tried.id)
    assert queries.layouts(context, document_id) == layout
