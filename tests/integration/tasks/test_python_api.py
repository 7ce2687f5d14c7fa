"""The Python API in the test's own process: its needs of the database and of workers."""

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
    def test_server_needs_penstock_migrate_which_every_flow_says(self, tmp_path: Path) -> None:
        text_pdf(tmp_path / "report.pdf", [["one"]])
        asked: list[Callable[[], object]] = [
            lambda: documents.submit(tmp_path / "report.pdf"),
            documents.list_documents,
            knowledge.bases,
            music.status,
            screenshots.status,
            webhooks.endpoints,
            calls.total,
            lambda: queues.pause("vision.local"),
        ]
        for ask in asked:
            with pytest.raises(documents.UserError, match="has no schema yet: run `penstock migrate`"):
                ask()


@pytest.mark.usefixtures("context")
def test_watch_gives_changes_of_a_document_alone_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text_pdf(tmp_path / "report.pdf", [["one"], ["two"]])
    first = documents.submit(tmp_path / "report.pdf")
    split = dataclasses.replace(first, status=documents.DocumentStatus.PROCESSING, pages=2)
    moved = dataclasses.replace(split, completed_count=1)
    looks = [first, dataclasses.replace(first, progress=3), split, dataclasses.replace(split, progress=9), moved, moved]
    monkeypatch.setattr("pipeline.operations.watch.watch", lambda *_, **__: iter([look] for look in looks))
    assert list(documents.watch(first.id, changes_only=True)) == [split, moved]
    assert len(list(documents.watch(first.id))) == 5, "else as it is at first, and whatever changes"


def test_warning_ends_once_a_worker_is_there(context: Context, tmp_path: Path) -> None:
    text_pdf(tmp_path / "report.pdf", [["one"]])
    document = documents.submit(tmp_path / "report.pdf")
    seen: list[documents.NoWorker | None] = []

    def follow() -> None:
        for one in documents.watch(document.id, timeout_s=60):
            seen.append(one.no_worker)
            if one.no_worker:
                Presence(context.redis).renew("worker", 60)
            elif any(seen):
                return

    with pytest.warns(documents.NoWorkerWarning, match="start some with `penstock worker`") as caught:
        follow()
    assert [bool(one) for one in seen] == [False, True, False]
    assert len(caught) == 1
    assert "no_worker" not in plain(document), "it is of the moment, and no part of the document as JSON"


@pytest.mark.usefixtures("context")
def test_waiting_for_a_base_says_that_nobody_works() -> None:
    base = knowledge.create_base("manuals", chunk_tokens=100)
    knowledge.add_notes(base.id, ["# A note"])
    with (
        pytest.warns(knowledge.NoWorkerWarning),
        pytest.raises(TimeoutError, match=f"1 item of {base.id} is open after 1.2 s. No worker is running"),
    ):
        knowledge.wait(base.id, timeout_s=1.2)


@pytest.mark.usefixtures("context")
def test_one_file_address_or_note_may_be_added_by_itself(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("# A note", encoding="utf-8")
    base = knowledge.create_base("manuals", chunk_tokens=100)
    for path in (str(tmp_path / "note.md"), tmp_path / "note.md"):
        added = knowledge.add_files(base.id, path)
        assert [one.name for one in added.created] + [one.code for one in added.failed] in (["note.md"], ["duplicate"])
    assert [one.url for one in knowledge.add_urls(base.id, "https://example.com/help").created] == [
        "https://example.com/help"
    ]
    assert len(knowledge.add_notes(base.id, "under the mat").created) == 1


@pytest.mark.usefixtures("context")
def test_a_type_that_no_event_has_is_refused_by_all_that_take_types() -> None:
    for ask in (events.after, events.follow):
        with pytest.raises(events.UserError, match="no event has the type document: see"):
            ask(0, types=["document"])


@pytest.mark.parametrize(
    "name", ["documents", "screenshots", "knowledge", "music", "events", "webhooks", "queues", "calls"]
)
def test_all_names_of_an_interface_are_there(name: str) -> None:
    module = import_module(f"tasks.{name}")
    assert not [one for one in module.__all__ if not hasattr(module, one)]


@pytest.mark.parametrize(
    ("keywords", "options"),
    [(music.Choices, music.StartOptions), (calls.Which, CallFilter)],
)
def test_keywords_are_the_options(keywords: type, options: type) -> None:
    assert get_type_hints(keywords) == {one.name: one.type for one in dataclasses.fields(options)}


def test_options_of_submit_are_its_keywords() -> None:
    known = signature(documents.submit, eval_str=True).parameters
    given = {one.name: one.annotation for one in known.values() if one.kind is Parameter.KEYWORD_ONLY}
    kept = {one.name: one.type | None for one in dataclasses.fields(documents.Options)}  # type: ignore[operator]
    assert given == kept | {"pages": str | None}, "and the name of today for the oldest of them"


def test_keywords_win_over_options(context: Context, tmp_path: Path) -> None:
    text_pdf(tmp_path / "report.pdf", [["one"], ["two"], ["three"]])
    options = documents.Options(page_range="1-2", allow_partial=True)
    document = documents.submit(tmp_path / "report.pdf", options, pages="3")
    assert (document.page_range, document.allow_partial) == ("3", True)
    assert documents.submit(tmp_path / "report.pdf", options, page_range="3").id == document.id, "its older name"
    assert documents.Options(pages="1-2", allow_partial=True) == options
    assert context.settings.provider == document.provider
