"""One run at a time: started, limited, paused, stopped."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import event, func, select, update

from pipeline.engine.errors import UserError
from pipeline.flows.music import plan, queries, service
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.service import AlreadyRunning, StartOptions
from pipeline.flows.music.states import BatchStatus, Step
from pipeline.flows.music.views import RunView
from pipeline.process import new_context
from pipeline.providers import gates
from pipeline.storage.context import Context
from tasks import music
from tests.support import songs
from tests.support.commits import lose_answers
from tests.support.music import CHAT, EMBED, Driver, add_songs, batch_rows, calls, change, states
from tests.support.provider_server import ProviderServer, Record


def test_second_start_is_refused_and_enqueues_no_song_twice(driver: Driver) -> None:
    add_songs(driver.context, 15)
    run_id = driver.start()
    with pytest.raises(AlreadyRunning):
        driver.start()
    driver.run(run_id, launches=1)
    with pytest.raises(AlreadyRunning):
        driver.start()
    members = [song for row in batch_rows(driver.context) for song in json.loads(row.song_ids)]
    assert sorted(members) == sorted(set(members))
    assert len(members) == 15


def test_pause_holds_resume_continues_and_stop_keeps_paid_results(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 20)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches
    assert driver.step(batch.id, batch.mode, Step.METADATA).requeue
    service.pause(driver.context)
    assert not driver.step(batch.id, batch.mode, Step.EMBED).done
    assert plan.plan(driver.context, run_id).batches == []
    assert queries.status(driver.context).is_paused
    service.resume(driver.context)
    assert [launch.step for launch in plan.plan(driver.context, run_id).batches] == [Step.EMBED]
    service.stop(driver.context)
    assert set(states(driver.context).values()) == {"PENDING"}
    assert queries.status(driver.context).pipeline_state == "idle"
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2, "the first batch's metadata was paid before the stop"


def test_stop_while_a_call_is_under_way_keeps_its_result(driver: Driver, provider: ProviderServer) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches

    def stop_during_call(record: Record) -> str:
        service.stop(driver.context)
        return songs.answer(record)

    provider.script.answer = stop_during_call
    assert not driver.step(batch.id, batch.mode, Step.METADATA).requeue
    listed = queries.songs(driver.context)
    assert {song.status for song in listed} == {"PENDING"}
    assert all(song.vector_text for song in listed)
    driver.run(driver.start())
    assert (calls(provider, CHAT), calls(provider, EMBED)) == (1, 1)


def test_resume_without_a_pause_and_commands_when_idle_are_refused(driver: Driver) -> None:
    for act in (service.pause, service.resume, service.stop):
        with pytest.raises(UserError, match="idle"):
            act(driver.context)
    driver.start()
    with pytest.raises(UserError, match="not paused"):
        service.resume(driver.context)


def test_limit_bounds_the_songs_of_a_run(driver: Driver) -> None:
    add_songs(driver.context, 30)
    driver.run(driver.start(limit=12))
    assert list(states(driver.context).values()).count("COMPLETED") == 12


@pytest.mark.parametrize(("count", "sizes"), [(25, [10, 10, 5]), (0, [])])
def test_batches_have_the_configured_size_and_the_last_one_the_rest(
    driver: Driver, count: int, sizes: list[int]
) -> None:
    if count:
        add_songs(driver.context, count)
    driver.run(driver.start(), launches=1)
    assert [len(json.loads(row.song_ids)) for row in batch_rows(driver.context)] == sizes


def test_lanes_and_batch_size_follow_the_live_settings(driver: Driver) -> None:
    add_songs(driver.context, 30)
    change(driver.context, "queue_batch_size", "5")
    change(driver.context, "queue_concurrency", "3")
    run_id = driver.start()
    driver.run(run_id, launches=1)
    assert len(batch_rows(driver.context)) == 6
    assert len(plan.plan(driver.context, run_id).batches) == 3
    assert len(plan.plan(driver.context, run_id).batches) == 3, "the others wait for their turn"


@pytest.mark.parametrize("value", ["0", "-1", "x", "1000000000"])
def test_nonsense_limits_are_refused_and_change_nothing(driver: Driver, value: str) -> None:
    with pytest.raises(UserError):
        change(driver.context, "queue_rate_limit_max", value)


def test_metadata_queues_follow_the_rate_setting_unless_they_have_limits_of_their_own(context: Context) -> None:
    def limit(name: str) -> str:
        return str(gates.live_values(context)[f"queue.{name}.limits"].value)

    assert (limit("metadata-generation"), limit("metadata-only"), limit("embedding-only")) == (
        "2/min",
        "2/min",
        "10/min",
    )

    gates.sync(context)

    def starts(name: str) -> int:
        gate = gates.gate(context, name)
        for number in range(20):
            if not gate.stamp(str(number), 1, 0).granted:
                return number
            gate.finish(str(number))
        return 20

    assert (starts("metadata-only"), starts("embedding-only")) == (2, 10)
    change(context, "queue_rate_limit_max", "7")
    change(context, "queue.metadata-only.limits", "3/s")
    assert (limit("metadata-generation"), limit("metadata-only")) == ("7/min", "3/s")
    window = gates.gate(context, "metadata-generation").inspect().windows[0]
    assert (window.window.limit, window.window.window_s) == (7, 60)


def test_start_without_a_provider_is_refused(context: Context) -> None:
    context.settings.music = context.settings.music.model_copy(update={"provider": ""})
    with pytest.raises(UserError, match="PENSTOCK_MUSIC__PROVIDER"):
        service.start(context, StartOptions(skip_sync=True))


def test_run_whose_library_stays_unreachable_fails_after_three_tries(driver: Driver) -> None:
    run_id = service.start(driver.context, StartOptions()).id
    for _ in range(3):
        driver.run(run_id)
        driver.context.db.run(lambda session: session.execute(update(RUNS).values(next_run_at=None)))
    run = queries.last_run(driver.context)
    assert run is not None
    assert (run.outcome, run.status) == ("failed", "idle")
    assert "cannot be reached" in str(run.error)


@pytest.mark.both_databases
def test_of_many_simultaneous_starts_one_begins_and_the_others_are_refused(driver: Driver) -> None:
    add_songs(driver.context, 15)
    together = Barrier(6)

    def attempt(_: int) -> str:
        together.wait()
        try:
            return driver.start()
        except AlreadyRunning as refused:
            return f"refused: {refused}"

    with ThreadPoolExecutor(6) as threads:
        listed = list(threads.map(attempt, range(6)))
    started = [name for name in listed if not name.startswith("refused")]
    assert len(started) == 1
    assert all(started[0] in name and "penstock music stop" in name for name in listed if name not in started)
    with driver.context.db.read() as session:
        assert session.execute(select(func.count()).select_from(RUNS)).scalar_one() == 1


def test_a_start_whose_commit_was_not_answered_is_the_run_that_began(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_songs(driver.context, 5)
    lose_answers(monkeypatch, driver.context.db)
    run_id = driver.start()
    with driver.context.db.read() as session:
        assert list(session.execute(select(RUNS.c.id)).scalars()) == [run_id]


@pytest.mark.parametrize("command", [service.pause, service.resume, service.stop])
def test_a_command_whose_commit_was_not_answered_succeeds(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, command: Callable[[Context], RunView]
) -> None:
    add_songs(driver.context, 5)
    run_id = driver.start()
    if command is service.resume:
        service.pause(driver.context)
    lose_answers(monkeypatch, driver.context.db)
    assert command(driver.context).id == run_id


@pytest.mark.both_databases
def test_stop_frees_a_large_run_in_a_few_statements(driver: Driver) -> None:
    add_songs(driver.context, 3000)
    driver.run(driver.start(), launches=1)
    statements: list[str] = []
    engine = driver.context.db.engine
    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    service.stop(driver.context)
    assert len(statements) < 30
    assert set(states(driver.context).values()) == {"PENDING"}
    assert {row.status for row in batch_rows(driver.context)} == {"CANCELLED"}
    with driver.context.db.read() as session:
        assert not session.execute(select(SONGS.c.id).where(SONGS.c.batch_id.is_not(None))).first()


def _prune(context: Context) -> dict[str, int]:
    listed = {kind.name: (kind.due(context), kind.remove(context)) for kind in service.retained(context)}
    assert all(due == removed for due, removed in listed.values())
    return {name: removed for name, (_, removed) in listed.items() if removed}


@pytest.mark.both_databases
def test_retention_of_ended_batches_has_its_own_settings_and_spares_the_last_run(driver: Driver) -> None:
    def age(days: float) -> None:
        ended = driver.context.db.now() - timedelta(days=days)
        driver.context.db.run(lambda session: session.execute(update(BATCHES).values(finished_at=ended)))

    add_songs(driver.context, 10)
    driver.run(driver.start())
    age(2)
    assert _prune(driver.context) == {}, "the last run counts them"
    driver.run(driver.start())
    age(0.5)
    assert _prune(driver.context) == {}
    age(2)
    assert _prune(driver.context) == {"finished batches": 1}
    assert batch_rows(driver.context) == []


@pytest.mark.both_databases
def test_of_failed_batches_the_newest_are_kept(driver: Driver) -> None:
    add_songs(driver.context, 30)
    driver.run(driver.start(), launches=1)
    ids = [row.id for row in batch_rows(driver.context)]
    at = {"finished_at": driver.context.db.now() - timedelta(days=100)}
    failed = update(BATCHES).values(status=BatchStatus.FAILED, **at)
    driver.context.db.run(lambda session: session.execute(failed))
    assert _prune(driver.context) == {}
    rules = driver.context.settings.retention.model_copy(update={"failed_batches_count": 2})
    context = new_context(driver.context.settings.model_copy(update={"retention": rules}))
    try:
        assert _prune(context) == {"failed batches": len(ids) - 2}
    finally:
        context.db.dispose()
    assert [row.id for row in batch_rows(driver.context)] == ids[-2:]


def test_a_run_is_waited_for_by_its_handle(driver: Driver) -> None:
    add_songs(driver.context, 3)
    run = music.start(skip_sync=True)
    with pytest.raises(TimeoutError, match="1 run has not ended after 0 s"):
        run.wait(timeout_s=0)
    music.stop()
    assert run.wait(timeout_s=30).outcome == "stopped"
