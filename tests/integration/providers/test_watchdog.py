"""The watchdog opens and closes breakers by the calls on record, without workers and without calls in Redis."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError

from pipeline.engine import events
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.gate import breaker_key
from pipeline.engine.guarded_call import request_hooks
from pipeline.engine.traces import AiCall
from pipeline.providers import gates, queue_control, watchdog
from pipeline.storage.context import Context
from tests.support.waiting import wait_until

NAME, QUEUE = "p:vision", "vision.p"
PROVIDERS = {
    name: {"base_url": "http://127.0.0.1:1/v1", "model": "m", "breaker_fail_max": 3, "prices": {"*": {"input": 1e6}}}
    for name in "pq"
}


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS": json.dumps(PROVIDERS)}


@pytest.fixture(autouse=True)
def synced(context: Context) -> None:
    gates.sync(context)


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the queues of announced changes."""
    queues: list[str] = []
    monkeypatch.setattr(Context, "gates_changed", lambda _, changed: queues.extend(changed))
    return queues


def _record(context: Context, *statuses: str, queue: str = QUEUE, ended_s: float = 1) -> None:
    """Record calls that ended in sequence, the last one `ended_s` seconds ago."""
    last = datetime.now(UTC) - timedelta(seconds=ended_s + 0.1)
    rows = [
        {
            "flow": "documents",
            "scope_id": "d",
            "unit": str(n),
            "capability": "vision",
            "operation": "o",
            "provider": "p",
            "queue": queue,
            "model": "m",
            "status": status,
            "latency_ms": 100,
            "created_at": last - timedelta(milliseconds=200 * (len(statuses) - 1 - n)),
        }
        for n, status in enumerate(statuses)
    ]
    context.db.run(lambda session: session.execute(insert(AiCall), rows))


def _state(context: Context) -> str:
    return gates.breaker(context, NAME).inspect().state


def _half_open(context: Context) -> None:
    breaker = gates.breaker(context, NAME)
    breaker.open(0.001, "down")
    gates.remember_breaker(context, NAME, breaker.inspect())
    wait_until(lambda: _state(context) == "half-open", 60, "the opening has ended")


def test_unnoticed_failures_open_the_breaker_in_redis_and_in_the_database(context: Context) -> None:
    _record(context, "ok", "transient", "transient", "transient")
    assert watchdog.check_calls(context) == [NAME]
    looked = gates.breaker(context, NAME).inspect()
    assert (looked.state, looked.reason) == ("open", "3 failures in a row on record")
    assert 10 < looked.left_s <= 15
    assert watchdog.closed(context) == [QUEUE]
    announced = [fields for _, fields in events.read(context.redis, "0", 0.1) if fields.get("event") == "breaker"]
    assert [fields["state"] for fields in announced] == ["open"]
    context.redis.flushall()
    gates.sync(context)
    assert _state(context) == "open", "the database knows"


def test_an_open_breaker_is_left_alone(context: Context) -> None:
    _record(context, *["transient"] * 3)
    assert watchdog.check_calls(context)
    assert not watchdog.check_calls(context)


@pytest.mark.parametrize(("status", "least_s"), [("rate_limited", 100), ("quota", 0)])
def test_an_unnoticed_refusal_opens_the_breaker_for_the_remaining_time(
    context: Context, status: str, least_s: int
) -> None:
    _record(context, "ok", status, ended_s=2)
    assert watchdog.check_calls(context) == [NAME]
    left_s = gates.breaker(context, NAME).inspect().left_s
    assert least_s < left_s <= (118 if status == "rate_limited" else 86400)


def test_calls_of_another_queue_do_not_count(context: Context) -> None:
    _record(context, *["transient"] * 3, queue="vision.q")
    assert watchdog.check_calls(context) == ["q:vision"]
    assert _state(context) == "closed"


def test_a_breaker_closed_by_hand_stays_closed_until_further_calls_fail(context: Context) -> None:
    _record(context, *["transient"] * 3)
    watchdog.check_calls(context)
    queue_control.close_breaker(context, NAME)
    assert not watchdog.check_calls(context)
    _record(context, *["transient"] * 2)
    assert not watchdog.check_calls(context), "two failures since the close, and it takes three"
    context.redis.flushall()
    gates.sync(context)
    assert not watchdog.check_calls(context), "also after Redis lost its data"
    _record(context, "transient", ended_s=0)
    assert watchdog.check_calls(context) == [NAME]


def test_a_rate_limit_before_an_operator_closed_the_breaker_is_forgiven(context: Context) -> None:
    _record(context, "rate_limited")
    queue_control.close_breaker(context, NAME)
    assert not watchdog.check_calls(context)


@pytest.mark.parametrize("open_it", [watchdog.check_calls, gates.sync], ids=["watchdog", "sync"])
def test_an_operators_simultaneous_close_wins(
    context: Context, monkeypatch: pytest.MonkeyPatch, open_it: Callable[[Context], object]
) -> None:
    if open_it is gates.sync:
        queue_control.open_breaker(context, NAME, 600, "by hand")
        context.redis.flushall()
    _record(context, *["transient"] * 3)
    breaker = gates.breaker(context, NAME)
    really_open = breaker.open

    def open_late(seconds: float, reason: str) -> float:
        queue_control.close_breaker(context, NAME)
        return really_open(seconds, reason)

    monkeypatch.setattr(breaker, "open", open_late)
    open_it(context)
    assert _state(context) == "closed"


def test_the_databases_longer_opening_holds_after_redis_loses_the_breaker(context: Context) -> None:
    queue_control.open_breaker(context, NAME, 600, "by hand")
    _record(context, *["transient"] * 3)
    context.redis.delete(breaker_key(NAME))
    assert not watchdog.check_calls(context)
    context.redis.flushall()
    gates.sync(context)
    assert gates.breaker(context, NAME).inspect().left_s > 500


def test_one_of_many_simultaneous_watchdogs_opens_the_breaker(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    _record(context, *["transient"] * 3)
    open_one, all_have_looked = watchdog._open, Barrier(6)

    def open_together(context: Context, name: str) -> bool:
        all_have_looked.wait(60)
        return open_one(context, name)

    monkeypatch.setattr(watchdog, "_open", open_together)
    with ThreadPoolExecutor(6) as threads:
        opened = list(threads.map(lambda _: watchdog.check_calls(context), range(6)))
    assert sorted(opened, reverse=True) == [[NAME]] + [[]] * 5


def test_an_unnoticed_success_of_a_probe_closes_the_breaker(context: Context) -> None:
    _half_open(context)
    _record(context, "ok", ended_s=60)
    assert not watchdog.check_calls(context), "that call started while the breaker was open"
    _record(context, "ok", ended_s=-5)
    assert watchdog.check_calls(context) == [NAME]
    assert _state(context) == "closed"
    assert not watchdog.check_calls(context)


def test_restarted_ids_of_calls_count_as_new_calls(context: Context) -> None:
    _record(context, *["ok"] * 9)
    queue_control.close_breaker(context, NAME)
    context.db.run(lambda session: session.query(AiCall).delete())
    _record(context, *["transient"] * 3)
    assert watchdog.check_calls(context) == [NAME]


def test_the_check_of_calls_reads_an_index(context: Context) -> None:
    seen: list[str] = []
    plan = "EXPLAIN QUERY PLAN " if context.db.is_sqlite else "EXPLAIN "
    with context.db.read() as session:
        if not context.db.is_sqlite:
            session.connection().exec_driver_sql("SET enable_seqscan = off")
        for query in (watchdog.newest_calls(QUEUE, 32), watchdog.NEWEST_CALL):
            compiled = query.compile(session.connection(), compile_kwargs={"literal_binds": True})
            seen += [str(row) for row in session.connection().exec_driver_sql(plan + str(compiled))]
    text = "\n".join(seen)
    assert "ix_ai_calls_queue_created_at" in text
    assert "SCAN ai_calls\n" not in text
    assert "Sort" not in text
    assert "TEMP B-TREE" not in text


def test_a_permanent_error_of_a_request_closes_a_half_open_breaker_in_the_database_too(context: Context) -> None:
    _half_open(context)
    guarded = gates.guarded_call(context, QUEUE, "holder")
    assert guarded is not None

    def ask() -> str:
        hooks = request_hooks.get()
        assert hooks is not None
        hooks.ready()
        raise UnitError("unsupported picture", kind=ErrorKind.PERMANENT)

    with pytest.raises(UnitError):
        guarded.call(ask, lambda _: ("m", 0, 0))
    assert _state(context) == "closed"
    states = [fields["state"] for _, fields in events.read(context.redis, "0", 0.1) if fields.get("event") == "breaker"]
    assert states[-1] == "closed"


def test_a_breaker_closes_in_the_database_first(context: Context) -> None:
    _half_open(context)

    def away() -> None:
        raise OperationalError("INSERT", {}, Exception("the database is away"))

    with pytest.raises(OperationalError):
        gates.breaker(context, NAME).succeeded(away)
    assert _state(context) == "half-open", "the next success closes it"


def test_every_change_of_a_gate_is_announced(context: Context, announced: list[str]) -> None:
    def newly_announced() -> list[str]:
        queues, announced[:] = sorted(announced), []
        return queues

    queue_control.pause(context, QUEUE, None)
    assert newly_announced() == [QUEUE]
    queue_control.resume(context, QUEUE)
    assert newly_announced() == [QUEUE]
    queue_control.open_breaker(context, NAME, 60, "by hand")
    assert newly_announced() == [QUEUE]
    queue_control.close_breaker(context, NAME)
    assert newly_announced() == [QUEUE]
    queue_control.change_setting(context, "provider.p.daily_spend_cap", "10")
    assert {QUEUE, "vision.q"} <= set(newly_announced()), "a limit may concern any queue"
    gates.charge(context, "p", 9.0)
    assert not newly_announced()
    gates.charge(context, "p", 1.0)
    assert newly_announced() == [QUEUE]
    gates.charge(context, "p", 1.0)
    assert not newly_announced(), "the gate is closed already"
