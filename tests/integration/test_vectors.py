"""Vectors are stored and found again on both databases."""

from datetime import UTC, datetime

import numpy as np
import pytest

from pipeline.storage import vectors
from pipeline.storage.context import Context

NOW = datetime.now(UTC)


def test_nearest_come_first_and_other_kinds_models_and_lengths_never(context: Context) -> None:
    random = np.random.default_rng(1)
    rows = random.normal(size=(9000, 8)).astype("<f4")
    with context.db.transaction() as session:
        vectors.upsert(session, "song", "m", [(n, row) for n, row in enumerate(rows)], NOW)
        vectors.upsert(session, "other", "m", [(1, rows[0])], NOW)
        vectors.upsert(session, "song", "old", [(9001, rows[0])], NOW)
        vectors.upsert(session, "song", "m", [(9002, [1.0, 2.0])], NOW)
    with context.db.read() as session:
        found = vectors.search(session, "song", "m", rows[4321], 5)
        without = vectors.search(session, "song", "m", rows[4321], 5, without=4321)
    scores = rows @ rows[4321] / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows[4321])
    assert [hit.item_id for hit in found] == list(np.argsort(-scores)[:5])
    assert found[0].score == pytest.approx(1.0)
    assert [hit.item_id for hit in without][:4] == [hit.item_id for hit in found][1:]


def test_new_vector_replaces_the_old_one_and_removed_ones_are_gone(context: Context) -> None:
    with context.db.transaction() as session:
        vectors.upsert(session, "song", "a", [(1, [1.0, 0.0])], NOW)
        vectors.upsert(session, "song", "b", [(1, [0.0, 1.0, 0.0])], NOW)
        assert vectors.search(session, "song", "a", [1.0, 0.0], 3) == []
        found = vectors.get(session, "song", 1)
        assert found is not None
        assert (found[0], found[1].tolist()) == ("b", [0.0, 1.0, 0.0])
        vectors.remove(session, "song", [1, 2])
        assert vectors.get(session, "song", 1) is None


def test_zeros_and_nothing_find_nothing(context: Context) -> None:
    with context.db.transaction() as session:
        vectors.upsert(session, "song", "a", [(1, [0.0, 0.0]), (2, [1.0, 0.0])], NOW)
        assert vectors.search(session, "song", "a", [0.0, 0.0], 3) == []
        assert [hit.item_id for hit in vectors.search(session, "song", "a", [1.0, 0.0], 3)] == [2, 1]


@pytest.mark.parametrize("rows", [[[float("nan")]], [[1.0], [1.0, 2.0]], [[]], []])
def test_what_is_no_vector_is_refused(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError):
        vectors.pack(rows)
