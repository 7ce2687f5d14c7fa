"""A search over many kinds of vectors equals the searches of each kind, also during changes."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pytest
from sqlalchemy import event

from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.database import Database
from pipeline.storage.vectors import memory, nearest
from pipeline.storage.vectors.codes import Floats
from pipeline.storage.vectors.nearest import Hit

pytestmark = pytest.mark.both_databases

NOW = datetime.now(UTC)
DIMS = 64
KINDS = [f"kb:{number:016x}" for number in range(30)]
EACH = 20


@pytest.fixture(autouse=True)
def by_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare even the tests' small collections by code, like large ones."""
    monkeypatch.setattr(nearest, "_EXACT_VALUES", 0)
    monkeypatch.setattr(nearest, "_CANDIDATES", 200)


@pytest.fixture(scope="module")
def rows() -> "Floats":
    return np.random.default_rng(3).normal(size=(len(KINDS), EACH, DIMS)).astype(np.float32)


@pytest.fixture
def filled(context: Context, rows: "Floats") -> Context:
    """A context with vectors whose items have the same ids in every kind."""
    with context.db.transaction() as session:
        for kind, own in zip(KINDS, rows, strict=True):
            vectors.upsert(session, kind, "m", list(enumerate(own)))
    return context


@pytest.fixture
def other(context: Context) -> Iterator[Database]:
    """A database as another process has it, with its own connections and no vectors in memory."""
    database = Database(context.settings.effective_database_url)
    yield database
    database.dispose()


def find(db: Database, kinds: list[str], vector: "Floats", limit: int = 10) -> list[Hit]:
    with db.read() as session:
        return nearest.search_many(session, kinds, "m", vector, limit)


def named(hits: list[Hit]) -> list[tuple[str, int]]:
    return [(hit.kind, hit.item_id) for hit in hits]


def exactly(rows: "Floats", query: "Floats", limit: int = 10) -> list[tuple[str, int]]:
    scores = rows @ query / np.linalg.norm(rows, axis=2)
    best = np.argsort(-scores, axis=None)[:limit]
    return [(KINDS[place // EACH], place % EACH) for place in best.tolist()]


def test_many_kinds_together_have_the_hits_that_each_has_alone(filled: Context, rows: "Floats") -> None:
    for number in range(0, len(KINDS), 7):
        query = rows[number, 3] + np.random.default_rng(number).normal(size=DIMS).astype(np.float32)
        together = find(filled.db, KINDS, query)
        alone = [hit for kind in KINDS for hit in find(filled.db, [kind], query)]
        best = sorted(alone, key=lambda hit: -hit.score)[:10]
        assert together == best
        assert named(together) == exactly(rows, query)
        few = KINDS[number : number + 3]
        assert (
            find(filled.db, few, query, 5)
            == [hit for hit in sorted(alone, key=lambda h: -h.score) if hit.kind in few][:5]
        )


def test_a_search_of_many_kinds_is_limited_to_named_items(filled: Context, rows: "Floats") -> None:
    for some in ([3], [3, 5, 900], list(range(3, 15))):
        with filled.db.read() as session:
            hits = nearest.search_many(session, KINDS, "m", rows[8, 5], 7, among=some)
        every = [hit for hit in find(filled.db, KINDS, rows[8, 5], len(KINDS) * EACH) if hit.item_id in some]
        assert hits == every[:7]


def test_a_search_over_many_kinds_takes_a_handful_of_statements(filled: Context, rows: "Floats") -> None:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            statements.append(statement)

    event.listen(filled.db.engine, "before_cursor_execute", note)
    try:
        for most in (3, 2):
            find(filled.db, KINDS, rows[0, 0])
            assert len(statements) <= most, statements
            statements.clear()
    finally:
        event.remove(filled.db.engine, "before_cursor_execute", note)


def test_changes_of_others_in_several_kinds_are_seen_at_once(filled: Context, other: Database, rows: "Floats") -> None:
    assert named(find(filled.db, KINDS, rows[0, 0], 1)) == [(KINDS[0], 0)]
    with other.transaction() as session:
        vectors.remove(session, KINDS[0], [0])
        vectors.upsert(session, KINDS[1], "m", [(500, rows[0, 0]), (1, -rows[1, 1])])
        vectors.upsert(session, KINDS[2], "new", [(2, rows[2, 2])])
        vectors.upsert(session, "kb:new", "m", [(1, rows[0, 0])])
    kinds = [*KINDS, "kb:new"]
    assert named(find(filled.db, kinds, rows[0, 0], 2)) == [("kb:new", 1), (KINDS[1], 500)]
    everything = set(named(find(filled.db, kinds, rows[0, 0], 5000)))
    assert everything == {(kind, n) for kind in KINDS for n in range(EACH)} - {(KINDS[0], 0), (KINDS[2], 2)} | {
        (KINDS[1], 500),
        ("kb:new", 1),
    }


def test_a_search_finds_the_vectors_of_its_own_transaction(filled: Context, rows: "Floats") -> None:
    with filled.db.transaction() as session:
        vectors.upsert(session, KINDS[4], "m", [(500, rows[9, 9] * 2)])
        vectors.remove(session, KINDS[9], [9])
        hits = nearest.search_many(session, KINDS, "m", rows[9, 9], 1)
        assert named(hits) == [(KINDS[4], 500)]
        assert named(nearest.search_many(session, KINDS, "m", rows[9, 9], 1, among=[9, 500])) == [(KINDS[4], 500)]
        session.rollback()
    assert named(find(filled.db, KINDS, rows[9, 9], 1)) == [(KINDS[9], 9)]


def test_removed_vectors_do_not_displace_remaining_hits(
    filled: Context, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "_CANDIDATES", 20)
    query = np.ones(DIMS, np.float32)
    near = query + np.random.default_rng(4).normal(size=(400, DIMS)).astype(np.float32) / 8
    with other.transaction() as session:
        vectors.upsert(session, KINDS[3], "m", [(1000 + n, row) for n, row in enumerate(near)])
    assert all(hit.item_id >= 1000 for hit in find(filled.db, KINDS, query, 30))
    with other.transaction() as session:
        vectors.remove(session, KINDS[3], range(1000, 1390))
    hits = find(filled.db, KINDS, query, 30)
    assert sorted(hit.item_id for hit in hits[:10]) == list(range(1390, 1400))
    assert len(hits) == 30


@pytest.mark.parametrize("much", [False, True])
def test_an_earlier_transaction_searches_its_own_snapshot(
    filled: Context, other: Database, rows: "Floats", monkeypatch: pytest.MonkeyPatch, *, much: bool
) -> None:
    """Other transactions have loaded the new vectors. `much`: more have changed than the index keeps apart."""
    if much:
        monkeypatch.setattr("pipeline.storage.vectors.index._MOST_RECENT", 1)
    find(filled.db, KINDS, rows[0, 0])
    with filled.db.read() as earlier:
        if not filled.db.is_sqlite:
            earlier.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        assert len(nearest.search_many(earlier, KINDS, "m", rows[0, 0], 1)) == 1
        for number in range(3):
            with other.transaction() as session:
                vectors.remove(session, KINDS[0], [0])
                vectors.upsert(session, KINDS[0], "m", [(500 + number, rows[0, 0]), (1, rows[0, 1] * -1)])
            assert find(filled.db, KINDS, rows[0, 0], 1)[0].item_id == 500
        in_memory = memory._kept[filled.db.engine.pool].indexes
        newest = {of: each.version for of, each in in_memory.items()}
        seen = nearest.search_many(earlier, KINDS, "m", rows[0, 0], 50)
        assert named(seen)[0] == (KINDS[0], 0)
        assert named(nearest.search_many(earlier, KINDS, "m", rows[0, 1], 1)) == [(KINDS[0], 1)]
        assert {hit.item_id for hit in seen} <= set(range(EACH))
        # The newer indexes stay in memory for the other transactions.
        assert {of: each.version for of, each in in_memory.items()} == newest
    assert find(filled.db, KINDS, rows[0, 0], 1)[0].item_id == 500


def test_a_restored_backup_is_read_again(
    filled: Context, other: Database, rows: "Floats", monkeypatch: pytest.MonkeyPatch
) -> None:
    find(filled.db, KINDS, rows[0, 0])
    cached = memory._kept[filled.db.engine.pool]
    of, known = next((of, each) for of, each in cached.indexes.items() if of.kind == KINDS[0])
    cached.indexes[of] = known.changed(known.version + 5, 0.0, known.ids[:5], known.ids[:0], known.words[:, :0])
    monkeypatch.setattr(memory, "_LONGEST_S", 0.0)
    assert named(find(filled.db, KINDS, rows[0, 0], 1)) == [(KINDS[0], 0)]
    assert cached.indexes[of].version == known.version


def test_many_threads_search_and_write_without_a_miss_or_a_deadlock(filled: Context, rows: "Floats") -> None:
    ended = threading.Event()

    def search(number: int) -> int:
        rounds = 0
        order = np.random.default_rng(number).permutation(len(KINDS))
        kinds = [KINDS[place] for place in order]
        while rounds < 5 or not ended.is_set():
            rounds += 1
            assert named(find(filled.db, kinds[: 15 + number], rows[order[0], number], 1)) == [(kinds[0], number)]
        return rounds

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(search, number) for number in range(4)]
        try:
            for number in range(15):
                with filled.db.transaction() as session:
                    for kind in KINDS[number::9]:
                        vectors.remove(session, kind, [100 + number - 1])
                        vectors.upsert(session, kind, "m", [(100 + number, rows[number, 10] * -1)])
                assert find(filled.db, KINDS, rows[number, 10] * -1, 1)[0].item_id == 100 + number
        finally:
            ended.set()
        assert all(future.result(60) >= 5 for future in running)
