"""Each flow's canvases as Celery's signatures, from every state that its rows may have."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from celery import Signature, chord, group
from celery.canvas import _chain as chain

from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.knowledge.plan import DueStep, Step
from pipeline.flows.screenshots.plan import Action, NextStep
from pipeline.flows.screenshots.scopes import Scope
from pipeline.settings import LOCAL
from pipeline.storage.context import Context
from tasks.documents import canvas as documents
from tasks.flow import Messages, in_a_row
from tasks.knowledge import canvas as knowledge
from tasks.music import canvas as music
from tasks.screenshots import canvas as screenshots
from tests.support.documents import insert_document
from tests.support.music import Driver, add_songs, services

DOCUMENT = {
    DocumentStatus.PENDING: "chain(documents.split, documents.convert)",
    DocumentStatus.PROCESSING: "chord(documents.lane × 2, documents.merge)",
    DocumentStatus.READY_TO_MERGE: "documents.merge",
}
ITEM = {
    Step.READ: "chain(knowledge.read, knowledge.embed_batches)",
    Step.EMBED: "chord(knowledge.embed × 2, knowledge.write)",
    Step.WRITE: "knowledge.write",
}
AFTER = "screenshots.expand, screenshots.merge_nodes"
BATCH = {
    Action.BEGIN: f"chain(screenshots.begin, screenshots.analyse_shards, {AFTER})",
    Action.ANALYSE: f"chord(screenshots.analyse × 2, chain(screenshots.merge_shards, {AFTER}))",
    Action.MERGE: f"chain(screenshots.merge_shards, {AFTER})",
    Action.EXPAND: f"chain({AFTER})",
}
CAPTURE = "chain(screenshots.capture, screenshots.batch)"
MERGES = "group(screenshots.merge_node × 2)"
SONGS = "chain(music.metadata, music.embed, music.save)"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return services("http://127.0.0.1:9/v1", embeds=True) | {
        "PENSTOCK_SCREENSHOTS__TEXT_PROVIDER": "ai",
        "PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES": '["screen:*"]',
    }


def shape(signature: Any) -> str:
    """Return a canvas as text, by the types of Celery's signatures."""
    match signature:
        case chord():
            return f"chord({counted(signature.tasks)}, {shape(signature.body)})"
        case group():
            return f"group({counted(signature.tasks)})"
        case chain(tasks=[alone]):
            return shape(alone)
        case chain():
            return f"chain({', '.join(map(shape, signature.tasks))})"
        case Signature():
            return str(signature.task)
    raise TypeError(signature)


def counted(tasks: Iterable[Any]) -> str:
    """Return parallel signatures as text, with the number of equal ones."""
    return ", ".join(f"{task} × {count}" for task, count in Counter(map(shape, getattr(tasks, "tasks", tasks))).items())


def shapes(messages: Iterable[Messages]) -> list[str]:
    """Return the canvases that these messages send for all their places."""
    return [shape(message.whole(range(message.wanted.places))) for message in messages]


@pytest.mark.parametrize("status", DOCUMENT)
def test_a_document_s_canvas_from_each_of_its_states(context: Context, status: DocumentStatus) -> None:
    pages = [PageStatus.PENDING] * 2 if status is DocumentStatus.PROCESSING else []
    document_id = insert_document(context, status, pages)
    assert shapes(documents._messages(context, [document_id])) == [DOCUMENT[status]]


@pytest.mark.parametrize("step", ITEM)
def test_an_item_s_canvas_from_each_of_its_steps(context: Context, step: Step) -> None:
    due = DueStep("i", step, "io", provider=LOCAL)
    assert shape(knowledge._canvas(context, due, range(2))) == ITEM[step]


@pytest.mark.parametrize("action", Action)
def test_a_batch_s_canvas_from_each_of_its_steps(context: Context, action: Action) -> None:
    step = NextStep(1, action, "control", 2 if action is Action.ANALYSE else 1)
    canvas = screenshots._canvas(context, step, range(step.places))
    assert shape(in_a_row(canvas, screenshots._tail(step))) == BATCH[action]


def test_the_screens_are_captured_and_batched(context: Context) -> None:
    assert shapes(screenshots._messages(context, [Scope.CAPTURES])) == [CAPTURE]


def test_nodes_are_merged_by_a_group(context: Context) -> None:
    assert shape(screenshots._merging("screenshot-text", range(2))) == MERGES


def test_songs_go_through_a_chain(context: Context) -> None:
    add_songs(context, 2)
    driver = Driver(context)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    assert shapes(music._messages(context, [run_id])) == [SONGS]


def drawn() -> str:
    """Return the canvases of a document, a batch and an item as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    for first, replacement in (
        (DOCUMENT[DocumentStatus.PENDING], DOCUMENT[DocumentStatus.PROCESSING]),
        (BATCH[Action.BEGIN], BATCH[Action.ANALYSE]),
        (ITEM[Step.READ], ITEM[Step.EMBED]),
    ):
        begin, replaced, *_ = re.findall(r"\w+\.\w+", first)
        lanes, *rest = re.findall(r"\w+\.\w+", replacement)
        lines.append(
            f'    {begin} --> {replaced} -. replaces itself .-> {lanes}["{lanes} × n"] --> {" --> ".join(rest)}'
        )
    return "\n".join(lines)


def test_the_architecture_page_draws_and_names_each_canvas() -> None:
    page = (Path(__file__).parents[3] / "docs/explanation/architecture.md").read_text()
    assert f"```mermaid\n{drawn()}\n```" in page
    canvases = [*DOCUMENT.values(), *ITEM.values(), *BATCH.values(), CAPTURE, MERGES, SONGS]
    missing = [canvas for canvas in canvases if f"`{canvas.replace(' × 2', ' × n')}`" not in page]
    assert not missing
