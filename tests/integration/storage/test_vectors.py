"""Searches for stored vectors on both databases, with and without vectors in memory."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pytest
from sqlalchemy import select

from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.database import Database
from pipeline.storage.vectors import codes, memory, nearest
from pipeline.storage.vectors.codes import Floats
from pipeline.storage.vectors.models import CODES, VERSIONS
from pipeline.storage.vectors.nearest import Hit

pytestmark = pytest.mark.both_databases

NOW = datetime.now(UTC)
MANY = 2200
DIMS = 1024


def put(db: Database, rows: "list[tuple[int, Floats]]", *, kind: str = "song", model: str = "m") -> None:
    with db.transaction() as session:
        vectors.upsert(session, kind, model, rows)


def find(db: Database, vector: "Floats", limit: int = 5, *, model: str = "m") -> list[Hit]:
    with db.read() as session:
        return nearest.search(session, "song", model, vector, limit)


def ids(hits: list[Hit]) -> list[int]:
    return [hit.item_id for hit in hits]


@pytest.fixture(scope="module")
def rows() -> "Floats":
    """Too many vectors for an exact comparison, each near one of 200 centres, as texts are near their subjects."""
    random = np.random.default_rng(1)
    centres = random.normal(size=(200, DIMS))
    near = centres[random.integers(0, 200, MANY)] + random.normal(size=(MANY, DIMS))
    return near.astype(np.float32)


@pytest.fixture
def other(context: Context) -> Iterator[Database]:
    """A database as another process has it, with its own connections and no vectors in memory."""
    database = Database(context.settings.effective_database_url)
    yield database
    database.dispose()


def test_nearest_come_first_and_other_kinds_models_and_lengths_never(context: Context) -> None:
    random = np.random.default_rng(1)
    rows = random.normal(size=(9000, 8)).astype("<f4")
    with context.db.transaction() as session:
        vectors.upsert(session, "song", "m", [(n, row) for n, row in enumerate(rows)])
        vectors.upsert(session, "other", "m", [(1, rows[0])])
        vectors.upsert(session, "song", "old", [(9001, rows[0])])
        vectors.upsert(session, "song", "m", [(9002, [1.0, 2.0])])
    with context.db.read() as session:
        hits = nearest.search(session, "song", "m", rows[4321], 5)
        without = nearest.search(session, "song", "m", rows[4321], 5, without=4321)
    scores = rows @ rows[4321] / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows[4321])
    assert ids(hits) == list(np.argsort(-scores)[:5])
    assert hits[0].score == pytest.approx(1.0)
    assert ids(without)[:4] == ids(hits)[1:]


def test_a_new_vector_replaces_the_old_one_and_removed_vectors_are_deleted(context: Context) -> None:
    with context.db.transaction() as session:
        vectors.upsert(session, "song", "a", [(1, [1.0, 0.0])])
        vectors.upsert(session, "song", "b", [(1, [0.0, 1.0, 0.0])])
        assert nearest.search(session, "song", "a", [1.0, 0.0], 3) == []
        stored = vectors.get(session, "song", 1)
        assert stored is not None
        assert (stored[0], stored[1].tolist()) == ("b", [0.0, 1.0, 0.0])
        vectors.remove(session, "song", [1, 2])
        assert vectors.get(session, "song", 1) is None


def test_a_zero_vector_and_an_unknown_model_have_no_hits(context: Context) -> None:
    with context.db.transaction() as session:
        vectors.upsert(session, "song", "a", [(1, [0.0, 0.0]), (2, [1.0, 0.0])])
        assert nearest.search(session, "song", "a", [0.0, 0.0], 3) == []
        assert ids(nearest.search(session, "song", "a", [1.0, 0.0], 3)) == [2, 1]
    with context.db.read() as session:
        assert ids(nearest.search(session, "song", "a", [1.0, 0.0], 3)) == [2, 1]
        assert nearest.search(session, "song", "unknown", [1.0, 0.0], 3) == []


@pytest.mark.parametrize("rows", [[[float("nan")]], [[1.0], [1.0, 2.0]], [[]], []])
def test_an_invalid_vector_is_refused(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError):
        vectors.pack(rows)


@pytest.mark.parametrize("dims", [3, 384, 1024, 1536, 3072])
def test_small_collections_are_compared_exactly(context: Context, dims: int) -> None:
    random = np.random.default_rng(dims)
    stored = random.normal(size=(300, dims)).astype(np.float32)
    put(context.db, list(enumerate(stored)))
    query = random.normal(size=dims).astype(np.float32)
    scores = stored @ query / np.linalg.norm(stored, axis=1) / np.linalg.norm(query)
    hits = find(context.db, query, 300)
    assert ids(hits) == list(np.argsort(-scores))
    assert [hit.score for hit in hits] == pytest.approx(np.sort(scores)[::-1].tolist(), abs=1e-5)


@pytest.mark.slow
def test_a_search_of_many_misses_at_most_one_percent_of_the_ten_best(context: Context, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    random = np.random.default_rng(2)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    missed = 0
    for query in rows[random.integers(0, MANY, 50)] + random.normal(size=(50, DIMS)).astype(np.float32):
        best = set(np.argsort(-(unit @ query))[:10].tolist())
        missed += len(best - set(ids(find(context.db, query, 10))))
    assert missed <= 5


def test_scores_of_many_are_exact(context: Context, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    hits = find(context.db, rows[7], 20)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    scores = unit @ unit[7]
    assert [hit.score for hit in hits] == pytest.approx(scores[ids(hits)].tolist(), abs=1e-5)
    assert hits[0].item_id == 7


def test_a_search_is_limited_to_the_named_items(context: Context, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    with context.db.read() as session:
        for few in (range(100, 200), range(200, 2200)):
            hits = nearest.search(session, "song", "m", rows[5], 5, among=few)
            unit = rows[few.start : few.stop] / np.linalg.norm(rows[few.start : few.stop], axis=1, keepdims=True)
            assert ids(hits) == [few.start + int(i) for i in np.argsort(-(unit @ rows[5]))[:5]]
        assert nearest.search(session, "song", "m", rows[5], 5, among=[]) == []


def test_changes_of_others_are_seen_by_the_next_search(context: Context, other: Database, rows: "Floats") -> None:
    """Search new, changed and removed vectors, and vectors of another model, with all codes in memory."""
    put(context.db, list(enumerate(rows)))
    assert ids(find(context.db, rows[0], 1)) == [0]
    put(other, [(MANY, rows[0] * 2), (1, -rows[1])])
    assert ids(find(context.db, rows[0], 2)) == [0, MANY]
    assert 1 not in ids(find(context.db, rows[1], 600))
    with other.transaction() as session:
        vectors.remove(session, "song", [0, 2])
        vectors.upsert(session, "song", "new", [(3, rows[3])])
    assert ids(find(context.db, rows[0], 1)) == [MANY]
    assert find(context.db, rows[2], 1)[0].item_id != 2
    assert find(context.db, rows[3], 1)[0].item_id != 3
    assert ids(find(context.db, rows[3], 1, model="new")) == [3]
    put(other, [(3, rows[3]), (0, rows[0])])
    assert ids(find(context.db, rows[3], 1)) == [3]
    assert ids(find(context.db, rows[0], 2)) == [0, MANY]
    assert find(context.db, rows[3], 1, model="new") == []


def test_another_process_sees_and_changes_the_same(context: Context, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    assert ids(find(context.db, rows[9], 1)) == [9]
    program = (
        "import numpy as np\n"
        "from pipeline.storage import vectors\n"
        "from pipeline.storage.vectors import nearest\n"
        "from pipeline.process import get_context\n"
        "db = get_context().db\n"
        "with db.transaction() as session:\n"
        "    found = vectors.get(session, 'song', 9)[1]\n"
        "    print(nearest.search(session, 'song', 'm', found, 1)[0].item_id)\n"
        "    vectors.remove(session, 'song', [9])\n"
        f"    vectors.upsert(session, 'song', 'm', [({MANY}, found)])\n"
        "db.dispose()\n"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "9")
    assert ids(find(context.db, rows[9], 1)) == [MANY]


def test_rolled_back_vectors_have_no_hits(context: Context, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    with context.db.transaction() as session:
        vectors.upsert(session, "song", "m", [(MANY, rows[0])])
        vectors.remove(session, "song", [0])
        assert ids(nearest.search(session, "song", "m", rows[0], 1)) == [MANY]
        session.rollback()
    assert ids(find(context.db, rows[0], 1)) == [0]
    with context.db.read() as session:
        assert session.execute(select(VERSIONS)).one().version == 1
        assert set(session.execute(select(CODES.c.version)).scalars()) == {1}


def test_uncommitted_vectors_are_invisible_to_others(context: Context, other: Database, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    with other.transaction() as session:
        vectors.upsert(session, "song", "m", [(MANY, rows[0] * 2)])
        assert ids(nearest.search(session, "song", "m", rows[0], 2)) == [0, MANY]
        assert MANY not in ids(find(context.db, rows[0], 2))
    assert ids(find(context.db, rows[0], 2)) == [0, MANY]


@pytest.mark.slow
def test_searches_in_many_threads_while_another_writes_miss_nothing(context: Context, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    ended = threading.Event()

    def search(number: int) -> int:
        rounds = 0
        while rounds < 5 or not ended.is_set():
            rounds += 1
            assert ids(find(context.db, rows[number], 1)) == [number]
        return rounds

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(search, number) for number in range(4)]
        try:
            for number in range(20):
                put(context.db, [(MANY + number, rows[100 + number])])
                assert ids(find(context.db, rows[100 + number], 2)) == [100 + number, MANY + number]
        finally:
            ended.set()
        assert all(future.result(60) >= 5 for future in running)


def test_writers_of_two_kinds_in_opposite_order_do_not_deadlock(context: Context) -> None:
    vector = np.ones(4, np.float32)

    def write(kinds: tuple[str, str], first: int) -> None:
        for number in range(20):
            with context.db.transaction() as session:
                for kind in kinds:
                    vectors.upsert(session, kind, "m", [(first + number, vector)])

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(write, ("a", "b"), 0), pool.submit(write, ("b", "a"), 100)]:
            future.result(60)
    with context.db.read() as session:
        versions = {row.kind: row.version for row in session.execute(select(VERSIONS))}
        assert versions == {"a": 40, "b": 40}
        assert len(nearest.search(session, "a", "m", vector, 100)) == 40


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the libraries' own threads
def test_a_child_of_a_fork_can_search(context: Context, rows: "Floats") -> None:
    put(context.db, list(enumerate(rows)))
    find(context.db, rows[0], 1)
    url = context.settings.effective_database_url
    # Fork as if another thread were searching: with the lock held.
    with memory._lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if ids(find(Database(url), rows[3], 1)) == [3] else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_memory_is_bounded_by_bytes_and_keeps_the_last_used_kinds(
    context: Context, rows: "Floats", monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [f"kb:{number}" for number in range(40)]
    with context.db.transaction() as tx:
        for number, kind in enumerate(kinds):
            vectors.upsert(tx, kind, "m", [(number, rows[number])])

    def cached_kinds() -> list[str]:
        return [of.kind for of in memory._kept[context.db.engine.pool].indexes]

    with context.db.read() as session:
        assert ids(nearest.search_many(session, kinds, "m", rows[7], 1)) == [7]
        assert cached_kinds() == sorted(kinds)
        total = sum(each.size for each in memory._kept[context.db.engine.pool].indexes.values())
        monkeypatch.setattr(memory, "BUDGET", total // 40 * 3)
        for number in (1, 2, 3, 1):
            assert ids(nearest.search(session, f"kb:{number}", "m", rows[1], 1)) == [number]
        assert nearest.search(session, "kb:none", "m", rows[1], 1) == []
        assert cached_kinds() == ["kb:3", "kb:1", "kb:none"]
        # A search of more kinds than fit into memory still has all hits.
        assert ids(nearest.search_many(session, kinds, "m", rows[7], 1)) == [7]
        assert len(cached_kinds()) == 3


def test_a_code_is_the_same_everywhere() -> None:
    """Codes are stored. If this fails, add a migration that computes them anew."""
    vector = np.zeros((1, 5), np.float32)
    vector[0] = [0.5, -1.0, 2.0, 0.25, 4.0]
    assert codes.encode(vector)[0][:8].hex() == "05c13c3dbef3693c"
    assert codes.encode(vector * 3) == codes.encode(vector)


@pytest.mark.parametrize("dims", [1, 64, 1000, 1024, 1100, 1536, 3072])
def test_the_rotation_preserves_cosines_approximately(dims: int) -> None:
    random = np.random.default_rng(dims)
    pair = random.normal(size=(2, dims)).astype(np.float32)
    turned = codes.rotated(pair)
    assert turned.shape == (2, codes.code_bits(dims))
    before, after = (float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in (pair, turned))
    assert after == pytest.approx(before, abs=1e-4 if dims in {1, 64, 1000, 1024} else 0.1)
