"""Pruning removes ledgers and finished documents in portions, and only after their time."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select, update
from structlog.testing import capture_logs
from typer.testing import CliRunner

from pipeline.engine import events, outbox
from pipeline.engine.outbox import EVENTS
from pipeline.engine.traces import AiCall
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, PAGES
from pipeline.flows.documents.service import remove
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent
from pipeline.flows.documents.states import DocumentStatus as D
from pipeline.flows.documents.states import PageStatus as P
from pipeline.flows.music.models import BATCHES, RUNS
from pipeline.interfaces.cli.main import app
from pipeline.operations.retention import prune
from pipeline.process import new_context
from pipeline.providers.calls import CALLS
from pipeline.settings import RetentionSettings, Settings
from pipeline.storage import retention
from pipeline.storage.context import Context
from pipeline.storage.retention import Rule
from pipeline.storage.tables import table_sizes
from tests.support.calls import call_row
from tests.support.documents import insert_document

pytestmark = pytest.mark.both_databases

NOW = datetime.now(UTC)


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def add(context: Context, table: Table, *rows: dict[str, Any]) -> None:
    context.db.run(lambda session: session.execute(insert(table), list(rows)))


def count(context: Context, table: Table) -> int:
    with context.db.read() as session:
        return session.execute(select(func.count()).select_from(table)).scalar_one()


def add_calls(context: Context, *ages: float, **values: Any) -> None:
    add(context, CALLS, *(call_row("ai", ago(age), **values) for age in ages))


def add_attempts(context: Context, document_id: str, *ages: float) -> None:
    add(
        context,
        ATTEMPTS,
        *(
            {
                "document_id": document_id,
                "page": 1,
                "page_source": 1,
                "provider": "local",
                "model": "",
                "text": "Lorem",
                "status": "completed",
                "worker_id": "w",
                "created_at": ago(age),
            }
            for age in ages
        ),
    )


def pruned(context: Context, *, dry_run: bool = False) -> dict[str, int]:
    counts = prune(context, dry_run=dry_run)
    assert not [kind.error for kind in counts if kind.error]
    return {kind.name: kind.removed for kind in counts if kind.removed}


def keeping(context: Context, **days_and_counts: float) -> Context:
    """Return a context of the same database with other retention settings."""
    retention = RetentionSettings(**days_and_counts)
    return new_context(context.settings.model_copy(update={"retention": retention}))


@pytest.fixture
def documents(context: Context) -> list[str]:
    """Documents completed 0, 10, 20 and 30 days ago, each with files, an attempt and two calls."""
    ids = []
    for age in (0, 10, 20, 30):
        document_id = insert_document(context, D.COMPLETED, [P.COMPLETED] * 2, finished_at=ago(age))
        add_attempts(context, document_id, age)
        add_calls(context, age, age, scope_id=document_id, preview="Dear Ann", error="said Ann")
        for folder in (files.upload_folder, files.output_folder):
            path = folder(context.settings, document_id)
            path.mkdir(parents=True)
            (path / "file").touch()
        ids.append(document_id)
    return ids


def test_by_default_ledgers_are_removed_after_90_days_and_results_never(context: Context, documents: list[str]) -> None:
    old = insert_document(context, D.COMPLETED, [P.COMPLETED], finished_at=ago(1000))
    add_attempts(context, old, 89, 91, 1000)
    add_calls(context, 89, 91)
    expected = {"attempts": 2, "calls": 1}
    assert pruned(context, dry_run=True) == expected
    assert count(context, ATTEMPTS) == 7, "a dry run removes nothing"
    assert pruned(context) == expected
    assert (count(context, DOCUMENTS), count(context, ATTEMPTS), count(context, CALLS)) == (5, 5, 9)
    assert pruned(context) == {}


def test_finished_documents_are_removed_by_age_with_rows_files_and_texts(
    context: Context, documents: list[str]
) -> None:
    insert_document(context, D.PROCESSING, updated_at=ago(100))
    insert_document(context, D.PAUSED, updated_at=ago(100))
    context = keeping(context, documents_days=15)
    assert pruned(context, dry_run=True) == {"documents": 2}
    assert pruned(context) == {"documents": 2}
    with context.db.read() as session:
        assert set(documents[:2]) <= set(session.execute(select(DOCUMENTS.c.id)).scalars())
        words = {row.scope_id: (row.preview, row.error) for row in session.execute(select(CALLS))}
    assert [words[document_id] for document_id in documents] == [("Dear Ann", "said Ann")] * 2 + [("", None)] * 2
    assert (count(context, DOCUMENTS), count(context, PAGES), count(context, ATTEMPTS)) == (4, 10, 2)
    assert sorted(path.name for path in context.settings.upload_dir.iterdir()) == sorted(documents[:2])
    assert sorted(path.name for path in context.settings.output_dir.iterdir()) == sorted(documents[:2])
    context.db.dispose()


def test_the_newest_finished_documents_are_kept_by_number(context: Context, documents: list[str]) -> None:
    context = keeping(context, documents_count=3)
    assert pruned(context) == {"documents": 1}
    with context.db.read() as session:
        assert set(session.execute(select(DOCUMENTS.c.id)).scalars()) == set(documents[:3])
    context.db.dispose()


def test_a_document_retried_during_pruning_is_kept(
    context: Context, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = keeping(context, documents_days=15)
    revived, remove_all = documents[2], files.remove_all

    def remove_then_revive(settings: Settings, document_id: str) -> None:
        """Two documents are due. While pruning removes the files of the older one, a user retries the other."""
        remove_all(settings, document_id)
        back = update(DOCUMENTS).where(DOCUMENTS.c.id == revived).values(status=D.PROCESSING, finished_at=None)
        context.db.run(lambda session: session.execute(back))

    monkeypatch.setattr(files, "remove_all", remove_then_revive)
    assert pruned(context) == {"documents": 1}
    with context.db.read() as session:
        assert session.execute(select(func.count()).where(DOCUMENTS.c.id == revived)).scalar_one() == 1
        assert session.execute(select(func.count()).where(ATTEMPTS.c.document_id == revived)).scalar_one() == 1
    context.db.dispose()


def test_rows_are_removed_in_portions_by_age_or_number(context: Context) -> None:
    add_calls(context, *(number / 2 for number in range(20)))  # 0 to 9.5 days
    kinds = {
        rule: retention.rows("calls", rule, CALLS.c.id, CALLS.c.created_at, portion=3)
        for rule in (Rule(8.2, 0), Rule(8.2, 10), Rule(100, 12), Rule())
    }
    assert [kind.due(context) for kind in kinds.values()] == [3, 10, 8, 0]
    assert [str(rule) for rule in kinds] == [
        "8.2 days",
        "8.2 days, the newest 10",
        "100 days, the newest 12",
        "for ever",
    ]
    assert kinds[Rule(8.2, 10)].remove(context) == 10
    with context.db.read() as session:
        assert session.execute(select(func.min(CALLS.c.created_at))).scalar_one() == ago(4.5)


def test_calls_of_two_days_are_kept_because_spend_caps_count_them(context: Context) -> None:
    add_calls(context, *[1] * 10, *[3] * 10)
    context = keeping(context, calls_count=5)
    assert pruned(context) == {"calls": 10}
    with pytest.raises(ValueError, match="at least 2"):
        RetentionSettings(calls_days=1)
    context.db.dispose()


def test_ended_runs_are_removed_except_the_last_and_runs_with_open_batches(context: Context) -> None:
    def run(name: str, age: float, **values: Any) -> dict[str, Any]:
        at = {"created_at": ago(age), "updated_at": ago(age), "finished_at": ago(age)}
        return {"id": name, "status": "IDLE", "active": None, **at, **values}

    rows = [run("old", 100), run("open", 100), run("last", 95), run("older", 200)]
    add(context, RUNS, *rows)
    batch = {"correlation_id": "c", "mode": "full", "song_ids": "[]", "songs": 0, "created_at": NOW, "updated_at": NOW}
    for run_id, status in (("open", "PENDING"), ("old", "FAILED")):
        add(context, BATCHES, {**batch, "run_id": run_id, "status": status})
    assert pruned(context) == {"runs": 2}
    with context.db.read() as session:
        assert set(session.execute(select(RUNS.c.id)).scalars()) == {"open", "last"}
        assert list(session.execute(select(BATCHES.c.run_id)).scalars()) == ["open"]


def test_events_are_removed_by_age_and_number_and_their_numbering_continues(context: Context) -> None:
    document_id = insert_document(context, D.PENDING)
    for event in (DocumentEvent.PAUSE, DocumentEvent.RESUME_SPLIT, DocumentEvent.PAUSE):
        context.db.run(lambda session, event=event: DOCUMENT.move(session, DOCUMENTS, event))
    old = update(EVENTS).where(EVENTS.c.seq <= 2).values(created_at=ago(91))
    context.db.run(lambda session: session.execute(old))
    assert pruned(context, dry_run=True) == {"events": 2}
    assert pruned(context) == {"events": 2}
    limited = keeping(context, events_count=1, events_days=0)
    remove(context, document_id)
    assert pruned(limited)["events"] == 1
    with context.db.read() as session:
        assert (outbox.first_seq(session), outbox.last_seq(session)) == (4, 4)
        assert [stored.type for stored in outbox.after(session, 0, 10)] == ["document.deleted"]
    limited.db.dispose()


def test_progress_is_removed_by_age_and_number(context: Context) -> None:
    for age in (100, 91, 89):
        context.redis.xadd(events.STREAM, {"flow": "documents"}, id=f"{int(ago(age).timestamp() * 1000)}-0")
    for _ in range(5):
        events.publish(context.redis, "documents", "moved")
    assert pruned(context, dry_run=True) == {"progress": 2}
    assert pruned(context) == {"progress": 2}
    limited = keeping(context, events_count=4)
    assert pruned(limited) == {"progress": 2}
    assert context.redis.xlen(events.STREAM) == 4
    limited.db.dispose()


def test_deleting_a_document_blanks_the_texts_of_its_calls(context: Context, documents: list[str]) -> None:
    remove(context, documents[0])
    with context.db.read() as session:
        texts = select(AiCall.preview, AiCall.error).where(AiCall.scope_id == documents[0])
        assert session.execute(texts).all() == [("", None)] * 2
        others = select(func.count()).where(AiCall.preview == "Dear Ann")
        assert session.execute(others).scalar_one() == 6


def test_a_kind_whose_pruning_fails_does_not_stop_the_others(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    add_calls(context, 100)

    def broken(*_: Any, **__: Any) -> int:
        raise RuntimeError("no such stream")

    monkeypatch.setattr(events, "trim", broken)
    outcomes = {kind.name: (kind.removed, kind.error) for kind in prune(context)}
    assert outcomes["calls"] == (1, None)
    assert outcomes["progress"] == (0, "no such stream")


def test_the_prune_command_reports_due_and_removed_rows(context: Context) -> None:
    add_calls(context, 100, 1)
    with capture_logs():
        dry = CliRunner().invoke(app, ["prune", "--dry-run"])
    assert dry.exit_code == 0
    assert [line.split() for line in dry.stdout.splitlines() if line.startswith("calls")] == [
        ["calls", "all", "90", "days", "1"]
    ]
    assert count(context, CALLS) == 2
    with capture_logs():
        done = CliRunner().invoke(app, ["prune", "--json"])
    assert {kind["name"]: kind["removed"] for kind in json.loads(done.stdout)}["calls"] == 1
    assert count(context, CALLS) == 1


def test_the_sizes_of_tables_are_listed_largest_first(context: Context) -> None:
    add_calls(context, *range(300), preview="x" * 400)
    add(context, RUNS, {"id": "r", "created_at": NOW, "updated_at": NOW})
    first, *rest = table_sizes(context.db)
    assert (first.name, first.rows, first.estimated) == ("ai_calls", 300, False)
    assert first.bytes is None or first.bytes > 100_000
    assert {table.name for table in rest} >= {"music_runs"}
    assert all(table.rows for table in rest)


def test_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RETENTION__DOCUMENTS_DAYS", "30")
    assert Settings().retention.documents_days == 30
