"""Claims on both databases, on a small table of the test's own."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pipeline.engine import claims
from pipeline.engine.claims import FREE, Claim, ClaimColumns, Owner, new_claim
from pipeline.engine.states import IllegalTransition, Machine, StaleClaim
from pipeline.engine.tables import table_of
from pipeline.storage.database import Database
from tests.support.commits import lose_answers

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 1, 20, 12, 0, tzinfo=UTC)
LEASE_S = 300


class JobStatus(IntEnum):
    QUEUED = 0
    RUNNING = 1
    DONE = 2
    AGAIN = 3


class JobEvent(StrEnum):
    CLAIM = "claim"
    FINISH = "finish"
    GIVE_BACK = "give_back"
    UNKNOWN = "unknown"


S, E = JobStatus, JobEvent
MACHINE = Machine(
    "job",
    {
        (S.QUEUED, E.CLAIM): S.RUNNING,
        (S.AGAIN, E.CLAIM): S.RUNNING,
        (S.RUNNING, E.FINISH): S.DONE,
        (S.RUNNING, E.GIVE_BACK): S.QUEUED,
    },
)


class _Base(DeclarativeBase):
    """A base of its own, because this table is not part of the pipeline's schema."""


class Job(ClaimColumns, _Base):
    __tablename__ = "jobs"

    id: Mapped[int] = mapped_column(primary_key=True)
    place: Mapped[int]
    status: Mapped[int] = mapped_column(default=0)
    result: Mapped[str] = mapped_column(default="")


JOBS = table_of(Job)


@pytest.fixture
def migrated() -> bool:
    return False


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    _Base.metadata.create_all(database.engine)
    yield database
    database.dispose()


def add(db: Database, count: int, **values: Any) -> list[int]:
    """Insert jobs whose places descend as their ids ascend; return the ids in the order of the places."""
    rows = [{"place": -number, **values} for number in range(count)]
    with db.transaction() as session:
        session.connection().execute(insert(JOBS), rows)
        return list(session.execute(select(JOBS.c.id).order_by(JOBS.c.place)).scalars())


def take(
    db: Database, limit: int = 1, *where: Any, now: datetime = NOW, worker: str = "w1", lease_s: float = LEASE_S
) -> tuple[list[Any], Claim]:
    claim = new_claim(Owner(worker, f"{worker}-request"), now, lease_s)
    with db.transaction() as session:
        rows = claims.take(
            session, JOBS, MACHINE, E.CLAIM, *where, claim=claim, order_by=JOBS.c.place, limit=limit, now=now
        )
    return rows, claim


def finish(db: Database, row: Any, claim: Claim, result: str) -> int:
    with db.transaction() as session:
        return MACHINE.move(
            session, JOBS, E.FINISH, JOBS.c.id == row.id, JOBS.c.claim_id == claim.id, **FREE, result=result
        )


def give_back(db: Database, *where: Any, **values: Any) -> int:
    with db.transaction() as session:
        return MACHINE.move(session, JOBS, E.GIVE_BACK, *where, **FREE, **values)


def job(db: Database, job_id: int) -> Any:
    with db.read() as session:
        return session.execute(select(JOBS).where(JOBS.c.id == job_id)).one()


def in_threads(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Start `act(0)`, `act(1)` … at the same time, and return their results."""
    barrier = Barrier(count)

    def act_together(number: int) -> Any:
        barrier.wait(60)
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(act_together, range(count)))


@pytest.mark.parametrize("limit", [1, 3])
def test_many_sessions_never_claim_the_same_row_and_miss_none(db: Database, limit: int) -> None:
    ids = add(db, 60)

    def drain(number: int) -> list[int]:
        job_ids: list[int] = []
        while rows := take(db, limit, worker=f"w{number}")[0]:
            job_ids += [row.id for row in rows]
        return job_ids

    claimed = [job_id for job_ids in in_threads(6, drain) for job_id in job_ids]
    assert sorted(claimed) == sorted(ids)
    with db.read() as session:
        assert session.execute(select(func.count()).where(JOBS.c.attempts == 1)).scalar() == 60


def test_one_of_many_sessions_claims_a_single_row_and_no_session_blocks(db: Database) -> None:
    add(db, 1)
    claimed = in_threads(8, lambda number: take(db, 1, worker=f"w{number}")[0])
    assert sorted(map(len, claimed)) == [0] * 7 + [1]


def test_a_claim_names_its_worker_delivery_fence_and_end(db: Database) -> None:
    (job_id,) = add(db, 1)
    (row,), claim = take(db)
    assert (row.id, row.status, row.attempts) == (job_id, S.RUNNING, 1)
    assert (row.worker_id, row.request_id, row.claim_id) == ("w1", "w1-request", claim.id)
    assert row.lease_until == NOW + timedelta(seconds=LEASE_S) == claim.expires_at
    assert job(db, job_id) == row


def test_rows_are_claimed_in_order_up_to_the_limit(db: Database) -> None:
    ids = add(db, 10)
    for expected in (ids[:4], ids[4:8], ids[8:], []):
        assert sorted(row.id for row in take(db, 4)[0]) == sorted(expected)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_limit_holds_whatever_plan_the_server_chooses(db: Database) -> None:
    add(db, 50)
    # Under such a plan, PostgreSQL runs a plain subquery once for each row, and claims 50 rows instead of 3.
    for plans in (["hashjoin", "material", "hashagg", "sort"], ["mergejoin", "hashjoin"], ["nestloop"]):
        with db.transaction() as session:
            for plan in plans:
                session.execute(text(f"SET LOCAL enable_{plan} = off"))
            claim = new_claim(Owner("w", "r"), NOW, LEASE_S)
            rows = claims.take(session, JOBS, MACHINE, E.CLAIM, claim=claim, order_by=JOBS.c.place, limit=3, now=NOW)
            session.rollback()
        assert len(rows) == 3


def test_only_rows_of_the_scope_are_claimed(db: Database) -> None:
    ids = add(db, 5)
    assert [row.id for row in take(db, 5, JOBS.c.id == ids[3])[0]] == [ids[3]]


def test_only_rows_that_may_take_the_event_are_claimed(db: Database) -> None:
    add(db, 1, status=S.DONE)
    add(db, 1, status=S.RUNNING)
    claimable = add(db, 1, status=S.AGAIN)
    assert {row.id for row in take(db, 5)[0]} <= set(claimable)
    assert take(db, 5)[0] == []


def test_a_result_under_a_lost_claim_changes_nothing(db: Database) -> None:
    add(db, 1)
    (row,), stale = take(db, worker="slow")
    give_back(db, JOBS.c.id == row.id)
    assert finish(db, row, stale, "from the dead") == 0
    (row,), claim = take(db, worker="next")
    assert finish(db, row, stale, "from the dead") == 0
    assert finish(db, row, claim, "good") == 1
    assert (job(db, row.id).result, job(db, row.id).status) == ("good", S.DONE)


def test_a_result_is_accepted_once(db: Database) -> None:
    add(db, 1)
    (row,), claim = take(db)
    assert [finish(db, row, claim, "first"), finish(db, row, claim, "second")] == [1, 0]
    assert job(db, row.id).result == "first"
    assert job(db, row.id).claim_id is None


def test_either_a_result_or_a_simultaneous_release_wins(db: Database) -> None:
    for _ in range(10):
        add(db, 1)
        (row,), claim = take(db)
        acts = [
            lambda row=row, claim=claim: finish(db, row, claim, "good"),
            lambda row=row, claim=claim: give_back(db, JOBS.c.id == row.id, JOBS.c.claim_id == claim.id),
        ]
        assert sum(in_threads(2, lambda number, acts=acts: acts[number]())) == 1
        give_back(db, JOBS.c.id == row.id)
        take(db)


def test_two_claims_of_one_worker_are_distinguished(db: Database) -> None:
    add(db, 2)
    (row, _), _ = take(db, 2)
    other = new_claim(Owner("w1", "w1-request"), NOW, LEASE_S)
    assert finish(db, row, other, "wrong fence") == 0


def test_nothing_is_claimed_before_it_is_due(db: Database) -> None:
    (job_id,) = add(db, 1, next_run_at=NOW + timedelta(seconds=5))
    assert take(db, now=NOW + timedelta(seconds=4.999))[0] == []
    (row,), _ = take(db, now=NOW + timedelta(seconds=5))
    assert row.id == job_id
    assert row.next_run_at is None


def test_waiting_rows_do_not_hold_up_those_behind_them(db: Database) -> None:
    add(db, 3, next_run_at=NOW + timedelta(seconds=5))
    due = add(db, 2)
    assert {row.id for row in take(db, 2)[0]} <= set(due)


def test_every_claim_counts_as_an_attempt_until_it_is_released(db: Database) -> None:
    (job_id,) = add(db, 1)
    for attempt in (1, 2, 3):
        (row,), _ = take(db)
        assert row.attempts == attempt
        give_back(db, JOBS.c.id == job_id)
    take(db)
    give_back(db, JOBS.c.id == job_id, attempts=JOBS.c.attempts - 1)
    assert job(db, job_id).attempts == 3


def test_a_claim_that_is_rolled_back_leaves_no_trace(db: Database) -> None:
    (job_id,) = add(db, 1)

    def claim_and_break() -> None:
        with db.transaction() as session:
            claim = new_claim(Owner("w", "r"), NOW, LEASE_S)
            claims.take(session, JOBS, MACHINE, E.CLAIM, claim=claim, order_by=JOBS.c.place, limit=1, now=NOW)
            raise RuntimeError("the worker broke")

    with pytest.raises(RuntimeError, match="broke"):
        claim_and_break()
    assert (job(db, job_id).attempts, job(db, job_id).claim_id) == (0, None)


def claim_in_a_run(db: Database, limit: int = 1) -> tuple[list[Any], Claim]:
    """Claim like a flow, inside the function that `run` repeats after a lost connection."""

    def work(session: Session) -> tuple[list[Any], Claim]:
        claim = new_claim(Owner("w", "r"), NOW, LEASE_S)
        assert claims.left_behind(session, JOBS, claim.owner) == [], (
            "its own claim does not count as an earlier delivery's"
        )
        order: dict[str, Any] = {"order_by": JOBS.c.place, "limit": limit, "now": NOW}
        untried = claims.take(session, JOBS, MACHINE, E.CLAIM, JOBS.c.attempts == 0, claim=claim, **order)
        return untried or claims.take(session, JOBS, MACHINE, E.CLAIM, claim=claim, **order), claim

    return db.run(work)


@pytest.mark.parametrize("times", [1, 2])
def test_a_commit_whose_answer_is_lost_leaves_no_claim_behind(
    db: Database, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    ids = add(db, 5)
    commits = lose_answers(monkeypatch, db, times)
    rows, claim = claim_in_a_run(db, 2)
    assert len(commits) == times + 1
    held = [job(db, job_id) for job_id in ids if job(db, job_id).claim_id]
    assert [row.id for row in held] == ids[:2], "only the first commit's claim remains"
    assert {(row.claim_id, row.attempts) for row in held} == {(claim.id, 1)}
    assert sorted(row.id for row in rows) == sorted(ids[:2])
    assert finish(db, rows[0], claim, "r") == 1


def test_a_failed_commit_is_repeated_from_the_same_state(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = add(db, 2)
    lose_answers(monkeypatch, db, committed=False)
    rows, claim = claim_in_a_run(db)
    assert [row.id for row in rows] == [first]
    assert (job(db, first).claim_id, job(db, first).attempts, job(db, second).claim_id) == (claim.id, 1, None)


def test_a_repeated_claim_leaves_rows_that_another_worker_has_claimed(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = add(db, 2)
    lose_answers(monkeypatch, db)
    repeated = iter([False, True])

    def work(session: Session) -> list[Any]:
        if next(repeated):  # the sweeper has freed the lost claim, and another worker holds the row
            other = new_claim(Owner("other", "r"), NOW, LEASE_S)
            session.execute(update(JOBS).where(JOBS.c.id == first).values(**other.columns))
        claim = new_claim(Owner("w", "r"), NOW, LEASE_S)
        return claims.take(session, JOBS, MACHINE, E.CLAIM, claim=claim, order_by=JOBS.c.place, limit=1, now=NOW)

    assert [row.id for row in db.run(work)] == [second]
    assert job(db, first).worker_id == "other"


def test_many_rows_move_at_once_each_with_its_own_values(db: Database) -> None:
    ids = add(db, 5)
    rows, claim = take(db, 5)
    changes = [{"id": row.id, "claim_id": claim.id, "result": f"r{row.id}"} for row in rows]
    with db.transaction() as session:
        MACHINE.move_each(session, JOBS, E.FINISH, changes, **FREE)
        MACHINE.move_each(session, JOBS, E.FINISH, [])
    assert [(job(db, job_id).status, job(db, job_id).result) for job_id in ids] == [(S.DONE, f"r{i}") for i in ids]


def test_rows_move_only_if_all_their_claims_still_hold(db: Database) -> None:
    add(db, 3)
    rows, claim = take(db, 3)
    give_back(db, JOBS.c.id == rows[1].id)
    changes = [{"id": row.id, "claim_id": claim.id, "result": "r"} for row in rows]

    def commit() -> None:
        with db.transaction() as session:
            MACHINE.move_each(session, JOBS, E.FINISH, changes, **FREE)

    with pytest.raises(StaleClaim, match="1 of 3"):
        commit()
    assert {job(db, row.id).result for row in rows} == {""}


def test_an_undefined_event_is_refused_before_the_first_write(db: Database) -> None:
    add(db, 1)
    with db.transaction() as session, pytest.raises(IllegalTransition, match="unknown"):
        MACHINE.move(session, JOBS, E.UNKNOWN)
