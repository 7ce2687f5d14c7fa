"""Views of rows, and as JSON."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine.views import plain, view_of


class Number(IntEnum):
    DONE = 6


class Word(StrEnum):
    FAILED = "failed"


@dataclass(frozen=True)
class Sample:
    id: int
    number: Number
    word: Word
    tags: list[str]
    report: dict[str, Any] | None
    created_at: datetime
    path: Path | None = None


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROW = SimpleNamespace(id=1, number=6, word="failed", tags='["a"]', report=None, created_at=NOW, unasked="x")


def test_a_row_becomes_a_view_by_the_types_of_its_fields() -> None:
    assert view_of(Sample, ROW) == Sample(1, Number.DONE, Word.FAILED, ["a"], None, NOW)


def test_json_columns_may_be_empty_and_values_that_are_read_already_stay() -> None:
    row = SimpleNamespace(**{**vars(ROW), "tags": ["b"], "report": '{"seen": 1}'})
    assert (view_of(Sample, row).tags, view_of(Sample, row).report) == (["b"], {"seen": 1})


def test_given_values_win_over_the_row() -> None:
    assert view_of(Sample, ROW, id=2, path=Path("x")) == Sample(
        2, Number.DONE, Word.FAILED, ["a"], None, NOW, Path("x")
    )


def test_a_column_that_is_missing_is_an_error_unless_it_has_a_default() -> None:
    with pytest.raises(TypeError, match="created_at"):
        view_of(Sample, SimpleNamespace(id=1, number=6, word="failed", tags="[]", report=None))


def test_plain_holds_numbered_states_by_name_and_iso_instants_at_any_depth() -> None:
    view = view_of(Sample, ROW, path=Path("x"))
    shown = {
        "id": 1,
        "number": "DONE",
        "word": "failed",
        "tags": ["a"],
        "report": None,
        "created_at": "2026-01-02T03:04:05+00:00",
        "path": "x",
    }
    assert plain({"found": [view, (view,)]}) == {"found": [shown, [shown]]}
