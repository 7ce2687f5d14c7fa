"""Layouts of pages: stored with the text, deleted with it, and used by the merge."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pipeline.engine import kept_answers
from pipeline.engine.claims import Owner
from pipeline.flows.documents import queries, service
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.work import merge
from pipeline.flows.documents.work.conversion import PageConversion
from pipeline.flows.documents.work.page import Attempt
from pipeline.providers.protocols import Answer
from pipeline.settings import ProviderProfile
from pipeline.storage.context import Context
from tests.support.documents import Worker, document, insert_document
from tests.support.scripted_sessions import TOKEN, ScriptedGateway, reply

HEAD = "| Item | Price |\n| --- | --- |"


def layout(number: int, kind: str = "paragraph", top: float = 60, bottom: float = 760) -> dict[str, Any]:
    block = {"page": number, "type": kind, "text": f"text {number}", "bbox": [50, top, 550, bottom]}
    return {"width": 600, "height": 800, "unit": "pt", "blocks": [block]}


def convert(context: Context, document_id: str, **texts: tuple[str, dict[str, Any] | None]) -> None:
    """Convert the document's pages, in order, to these texts."""
    worker = Worker(context, document_id)
    for unit, (text, page_layout) in zip(worker.claim(len(texts)), texts.values(), strict=True):
        worker.settle(Attempt(unit, Answer(text, "local", layout=page_layout)))


def test_a_pages_layout_is_stored_with_its_text_and_replaced_with_it(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING])
    convert(context, document_id, one=("first", layout(1)))
    assert queries.layouts(context, document_id) == {1: layout(1)}
    for text, new_layout in (("second", layout(1, "heading")), ("third, by a model", None)):
        merge.merge_document(context, document_id, Owner("m", text))
        service.retry_page(context, document_id, 1)
        convert(context, document_id, one=(text, new_layout))
        assert queries.layouts(context, document_id) == ({1: new_layout} if new_layout else {})


def test_a_page_from_the_cache_has_its_layout(context: Context) -> None:
    def convert_by_nodes(pages: int) -> tuple[str, Attempt]:
        document_id = insert_document(context, pages=[PageStatus.PENDING] * pages, provider="desk")
        image = context.settings.data_dir / f"{document_id}.png"
        image.write_bytes(b"\x89PNG\r\n\x1a\n the same")
        worker = Worker(context, document_id, queue="vision.desk")
        unit = replace(worker.claim(pages)[-1], image_path=str(image))
        conversion = PageConversion(context, document_id)
        conversion.document = document(context, document_id)
        attempt = conversion.convert(unit)
        worker.settle(attempt)
        return document_id, attempt

    with ScriptedGateway(step=reply({"text": "# Hi", "model": "q", "layout": layout(1)})) as gateway:
        desk = ProviderProfile(kind="nodes", base_url=gateway.url, api_key=SecretStr(TOKEN), timeout_s=20)
        context.settings.providers["desk"] = desk
        first, paid = convert_by_nodes(1)
        second, cached = convert_by_nodes(2)
        assert len(gateway.ids) == 1
    assert (len(paid.calls), len(cached.calls), cached.cached) == (1, 0, True)
    assert queries.layouts(context, first) == {1: layout(1)}
    assert queries.layouts(context, second) == {2: layout(1) | {"blocks": [layout(1)["blocks"][0] | {"page": 2}]}}


def test_a_retried_page_is_another_job_at_a_gateway_in_any_process(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING], provider="desk")
    image = context.settings.data_dir / "page.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n the same")
    worker = Worker(context, document_id, queue="vision.desk")

    def converted_by_a_new_process() -> Attempt:
        conversion = PageConversion(context, document_id)
        conversion.document = document(context, document_id)
        return conversion.convert(replace(unit, image_path=str(image)))

    with ScriptedGateway(step=reply({"text": "# Hi", "model": "q"})) as gateway:
        desk = ProviderProfile(kind="nodes", base_url=gateway.url, api_key=SecretStr(TOKEN), timeout_s=20)
        context.settings.providers["desk"] = desk
        (unit,) = worker.claim()
        worker.settle(converted_by_a_new_process())
        merge.merge_document(context, document_id, Owner("m", "1"))
        service.retry_page(context, document_id, 1)
        (unit,) = worker.claim()
        killed = converted_by_a_new_process()
        (call,) = killed.calls
        assert call["kept"]
        kept_answers.discard(call["kept"])  # as if a kill had preceded the kept answer
        converted_by_a_new_process()
        # The rest of an id counts this process's answers: another process starts at 0.
        before, asked_again, successor = (job_id.rpartition(":")[0] for job_id in gateway.ids)
    assert before != asked_again
    assert asked_again == successor, "the successor gets the paid answer"


def test_the_text_of_an_older_attempt_has_no_layout(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING])
    convert(context, document_id, one=("first", layout(1)))
    merge.merge_document(context, document_id, Owner("m", "1"))
    (attempt,) = queries.attempts(context, document_id)
    service.promote(context, document_id, 1, attempt.id)
    assert queries.layouts(context, document_id) == {}


def test_a_restarted_document_has_no_old_layouts(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING])
    convert(context, document_id, one=("first", layout(1)))
    merge.merge_document(context, document_id, Owner("m", "1"))
    service.retry(context, document_id)
    assert queries.layouts(context, document_id) == {}


def test_a_layout_with_any_characters_is_stored(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING])
    odd_layout = layout(1) | {"blocks": [{"type": "paragraph", "text": "a\x00b \ud800 中文 😀", "bbox": [0, 0, 1, 1]}]}
    convert(context, document_id, one=("text", odd_layout))
    assert "中文 😀" in queries.layouts(context, document_id)[1]["blocks"][0]["text"]


def test_a_table_over_two_pages_is_merged_as_one(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING] * 2)
    convert(
        context,
        document_id,
        one=(f"{HEAD}\n| Nut | 1 |", layout(1, "table", 500)),
        two=("| Bolt | 2 |\n| --- | --- |\n| Cog | 3 |\n\nThe end.", layout(2, "table", 60, 200)),
    )
    assert merge.merge_document(context, document_id, Owner("m", "1"))
    view = queries.document(context, document_id)
    assert view.status is DocumentStatus.COMPLETED
    assert view.merged_path
    text = Path(view.merged_path).read_text()
    assert f"{HEAD}\n| Nut | 1 |\n| Bolt | 2 |\n| Cog | 3 |\n\n---\n\n<!-- Page 2 -->\n\nThe end." in text


def test_layouts_as_json_name_every_page_with_or_without_a_layout(context: Context) -> None:
    states = [PageStatus.PENDING, PageStatus.PENDING, PageStatus.FAILED]
    document_id = insert_document(context, pages=states)
    convert(context, document_id, one=("first", layout(1)), two=("# second", None))
    listed = queries.layout_json(context, document_id)
    first, second, third = json.loads(json.dumps(listed))["pages"]
    assert (first["page"], first["width"], first["blocks"][0]["bbox"]) == (1, 600, [50, 60, 550, 760])
    assert second["blocks"] == [{"type": "markdown", "text": "# second", "bbox": None}]
    assert (third["status"], third["blocks"], third["error"]) == ("FAILED", [], "it failed")
