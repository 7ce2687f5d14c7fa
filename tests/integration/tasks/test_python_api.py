"""The Python API in the test's own process: its schema, its warning without workers, and its names."""

import dataclasses
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import get_type_hints

import pytest

from pipeline.engine.presence import Presence
from pipeline.engine.views import plain
from pipeline.providers.calls import CallFilter
from pipeline.storage.context import Context
from tasks import calls, documents, events, knowledge, music, queues, screenshots, webhooks
from tests.support.samples import text_pdf


class TestWithoutASchema:
    @pytest.fixture
    def migrated(self) -> bool:
        return False

    @pytest.mark.usefixtures("context")
    def test_every_flow_asks_for_penstock_migrate(self, tmp_path: Path) -> None:
        text_pdf(tmp_path / "report.pdf", [["one"]])
        operations: list[Callable[[], object]] = [
            lambda: documents.submit(tmp_path / "report.pdf"),
            documents.list_documents,
            knowledge.bases,
            music.status,
            screenshots.status,
            webhooks.endpoints,
            calls.total,
            lambda: queues.pause("vision.local"),
        ]
        for operation in operations:
            with pytest.raises(documents.UserError, match="has no schema yet: run `penstock migrate`"):
                operation()


@pytest.mark.usefixtures("context")
def test_watch_yields_changes_of_one_document_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_pdf(tmp_path / "report.pdf", [["one"], ["two"]])
    first = documents.submit(tmp_path / "report.pdf")
    split = dataclasses.replace(first, status=documents.DocumentStatus.PROCESSING, pages=2)
    moved = dataclasses.replace(split, completed_count=1)
    states = [
        first,
        dataclasses.replace(first, progress=3),
        split,
        dataclasses.replace(split, progress=9),
        moved,
        moved,
    ]
    monkeypatch.setattr("pipeline.operations.watch.watch", lambda *_, **__: iter([state] for state in states))
    assert list(documents.watch(first.id, changes_only=True)) == [split, moved]
    assert len(list(documents.watch(first.id))) == 5, "by default the first state and every later difference"


def test_the_warning_ends_when_a_worker_starts(context: Context, tmp_path: Path) -> None:
    text_pdf(tmp_path / "report.pdf", [["one"]])
    document = documents.submit(tmp_path / "report.pdf")
    seen: list[documents.NoWorker | None] = []

    def follow() -> None:
        for state in documents.watch(document.id, timeout_s=60):
            seen.append(state.no_worker)
            if state.no_worker:
                Presence(context.redis).renew("worker", 60)
            elif any(seen):
                return

    with pytest.warns(documents.NoWorkerWarning, match="start some with `penstock worker`") as caught:
        follow()
    assert [bool(warning) for warning in seen] == [False, True, False]
    assert len(caught) == 1
    assert "no_worker" not in plain(document), "the warning is momentary, and not part of the document's JSON"


@pytest.mark.usefixtures("context")
def test_waiting_for_a_base_says_that_no_worker_is_running() -> None:
    base = knowledge.create_base("manuals", chunk_tokens=100)
    knowledge.add_notes(base.id, ["# A note"])
    with (
        pytest.warns(knowledge.NoWorkerWarning),
        pytest.raises(TimeoutError, match=f"1 item of {base.id} is open after 1.2 s. No worker is running"),
    ):
        knowledge.wait(base.id, timeout_s=1.2)


@pytest.mark.usefixtures("context")
def test_a_single_file_address_or_note_may_be_added(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("# A note", encoding="utf-8")
    base = knowledge.create_base("manuals", chunk_tokens=100)
    for path in (str(tmp_path / "note.md"), tmp_path / "note.md"):
        added = knowledge.add_files(base.id, path)
        assert [entry.name for entry in added.created] + [entry.code for entry in added.failed] in (
            ["note.md"],
            ["duplicate"],
        )
    assert [entry.url for entry in knowledge.add_urls(base.id, "https://example.com/help").created] == [
        "https://example.com/help"
    ]
    assert len(knowledge.add_notes(base.id, "under the mat").created) == 1


@pytest.mark.usefixtures("context")
def test_unknown_event_types_are_refused_everywhere() -> None:
    for ask in (events.after, events.follow):
        with pytest.raises(events.UserError, match="no event has the type document: see"):
            ask(0, types=["document"])


@pytest.mark.parametrize(
    "name", ["documents", "screenshots", "knowledge", "music", "events", "webhooks", "queues", "calls"]
)
def test_interfaces_define_all_names_that_they_export(name: str) -> None:
    module = import_module(f"tasks.{name}")
    assert not [exported for exported in module.__all__ if not hasattr(module, exported)]


@pytest.mark.parametrize(
    ("keywords", "options"),
    [(music.Choices, music.StartOptions), (calls.Which, CallFilter)],
)
def test_keywords_are_the_options(keywords: type, options: type) -> None:
    assert get_type_hints(keywords) == {option.name: option.type for option in dataclasses.fields(options)}


def test_options_of_submit_are_its_keywords() -> None:
    known = signature(documents.submit, eval_str=True).parameters
    keywords = {field.name: field.annotation for field in known.values() if field.kind is Parameter.KEYWORD_ONLY}
    options = {field.name: field.type | None for field in dataclasses.fields(documents.Options)}  # type: ignore[operator]
    further = {"pages": str | None, "original": Path | None}
    assert keywords == options | further, "`pages` is the current name of `page_range`"


def test_keywords_win_over_options(context: Context, tmp_path: Path) -> None:
    text_pdf(tmp_path / "report.pdf", [["one"], ["two"], ["three"]])
    options = documents.Options(page_range="1-2", allow_partial=True)
    document = documents.submit(tmp_path / "report.pdf", options, pages="3")
    assert (document.page_range, document.allow_partial) == ("3", True)
    assert documents.submit(tmp_path / "report.pdf", options, page_range="3").id == document.id, (
        "the older name of `pages`"
    )
    assert documents.Options(pages="1-2", allow_partial=True) == options
    assert context.settings.provider == document.provider
