"""The board of `convert` names the reason why a file has not started."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import process
from pipeline.flows.documents.views import Kind, Load, Reason
from pipeline.interfaces.cli.convert import board as board_module
from pipeline.interfaces.cli.convert.board import Board
from pipeline.interfaces.cli.convert.job import Job
from pipeline.interfaces.cli.convert.targets import Target
from pipeline.interfaces.cli.progress import Bar
from pipeline.operations import documents as operations
from pipeline.process import forget_context
from pipeline.providers import registry
from pipeline.settings import ProviderProfile, get_settings


@pytest.fixture(autouse=True)
def own_data(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's own data folder may have any schema."""
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(data_dir))
    get_settings.cache_clear()
    forget_context()
    yield
    forget_context()
    get_settings.cache_clear()


class Shown:
    """Records the bars."""

    def __init__(self) -> None:
        self.bars: dict[str, Bar] = {}

    def show(self, key: str, bar: Bar) -> None:
        self.bars[key] = bar

    def remove(self, key: str) -> None:
        self.bars.pop(key, None)

    def keep(self, _: object) -> None:
        pass


def job(name: str, status: str = "", *, pages: int = 0, done: int = 0) -> Job:
    document: Any = SimpleNamespace(
        id=name,
        status=SimpleNamespace(name=status),
        pages=pages,
        completed_count=done,
        failed_count=0,
        provider="ai",
        settled=status == "COMPLETED",
    )
    return Job(Target(Path(f"{name}.pdf"), Path(f"{name}.md")), document=document if status else None)


@pytest.mark.parametrize(
    ("waiting_job", "others", "closed", "waits"),
    [
        (job("a", "PENDING"), Load(0, 0), {}, "waits to be split"),
        (job("a", "PENDING"), Load(3, 0), {}, "waits to be split, behind 3 other documents"),
        (job("a", "PENDING"), Load(2, 1200), {}, "waits to be split, behind 1,200 pages of others"),
        (job("a", "PROCESSING", pages=4), Load(2, 1), {}, "behind 1 page of others"),
        (job("a", "PROCESSING", pages=4), Load(0, 0), {"ai": "vision.ai is paused"}, "vision.ai is paused"),
        (job("a", "PROCESSING", pages=4, done=1), Load(2, 1), {"ai": "vision.ai is paused"}, ""),
        (job("a", "SPLITTING"), Load(2, 1), {}, ""),
    ],
)
def test_a_document_that_has_not_started_says_what_it_waits_for(
    waiting_job: Job, others: Load, closed: dict[str, str], waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "load_beside", lambda *_: others)
    monkeypatch.setattr(operations, "retries", lambda *_: {})
    monkeypatch.setattr(board_module, "closed", lambda _: closed)
    shown: Any = Shown()
    board = Board([waiting_job], shown)
    board.keep()
    assert shown.bars["a"].waits == waits


def test_pages_that_take_long_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    under_way = [
        SimpleNamespace(page_source=number, updated_at=now - timedelta(seconds=seconds))
        for number, seconds in ((3, 40), (7, 95), (8, 2))
    ]
    monkeypatch.setattr(board_module, "closed", lambda _: {})
    monkeypatch.setattr(operations, "pages", lambda *_, **__: under_way)
    monkeypatch.setattr(process, "get_context", lambda: SimpleNamespace(db=SimpleNamespace(now=lambda: now)))
    shown: Any = Shown()
    board = Board([job("a", "PROCESSING", pages=9, done=1)], shown)
    board.keep()
    assert shown.bars["a"].waits == "slow: page 7 since 1 min 35 s, page 3 since 40 s"


def test_errors_of_its_own_pages_are_shown_before_the_pages_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "4 pages tried again: the reply is not JSON"
    monkeypatch.setattr(operations, "load_beside", lambda *_: Load(2, 1200))
    monkeypatch.setattr(operations, "retries", lambda *_: {"a": Reason(Kind.RETRY, words)})
    monkeypatch.setattr(board_module, "closed", lambda _: {})
    shown: Any = Shown()
    Board([job("a", "PROCESSING", pages=4)], shown).keep()
    assert shown.bars["a"].waits == words


def test_a_single_file_is_shown_before_it_is_submitted() -> None:
    shown: Any = Shown()
    Board([job("a")], shown)
    assert shown.bars[""] == Bar("a.pdf", 0, None, "", waits="being read")


def test_all_files_together_count_pages_and_know_their_total_once_all_are_split() -> None:
    shown: Any = Shown()
    jobs = [job("a", "PROCESSING", pages=4, done=1), job("b", "PENDING")]
    Board(jobs, shown)
    assert (shown.bars[""].figures, shown.bars[""].total) == ("0/2 files, 1/4 pages", None)
    jobs[1] = job("b", "PROCESSING", pages=6)
    Board(jobs, shown).show(jobs[1])
    assert (shown.bars[""].figures, shown.bars[""].total) == ("0/2 files, 1/10 pages", 10)


def test_a_provider_known_to_the_command_alone_has_its_own_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = job("a", "FAILED")
    document: Any = failed.document
    document.error = registry.unknown(get_settings(), "ai")
    assert failed.problem == document.error
    monkeypatch.setattr(get_settings(), "providers", {"ai": ProviderProfile()})
    assert "the running stack does not know the provider 'ai'" in failed.problem
    document.error = "it is damaged"
    assert failed.problem == "it is damaged"
