"""The handling of replies: whole, short, wrong, broken."""

import json

import pytest
from sqlalchemy import select

from pipeline.engine.traces import AiCall
from pipeline.flows.music import plan, queries, service
from pipeline.flows.music.states import Step
from pipeline.providers import gates
from tests.support import songs
from tests.support.music import CHAT, Driver, add_songs, batch_rows, calls, states
from tests.support.provider_server import Fault, ProviderServer, Record


def test_songs_missing_from_a_reply_go_back_and_fail_after_three_times(
    driver: Driver, provider: ProviderServer
) -> None:
    provider.script.answer = lambda record: songs.answer(record, leave_out=["Song 3"])
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert states(driver.context) == {f"Song {n}": "FAILED" if n == 3 else "COMPLETED" for n in range(1, 11)}
    assert calls(provider, CHAT) == 3
    assert "left the song out" in str(queries.song(driver.context, "Song 3").error)


def test_a_song_left_out_once_is_re_requested_in_the_same_run(driver: Driver, provider: ProviderServer) -> None:
    provider.push(Fault(status=200, text='{"songs": []}'))
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2


def test_wrong_and_extra_ids_are_ignored_and_counted(driver: Driver, provider: ProviderServer) -> None:
    def with_extras(record: Record) -> str:
        requested = songs.in_prompt(record)
        extra = [songs.analysis({"id": "nobody", "title": "?"}), songs.analysis(requested[0])]
        return json.dumps([*(songs.analysis(song) for song in requested), *extra])

    provider.script.answer = with_extras
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert batch_rows(driver.context)[0].ignored == 2


def test_broken_reply_goes_back_to_the_model_once_with_its_fault(driver: Driver, provider: ProviderServer) -> None:
    provider.push(Fault(status=200, text='{"songs": [{"id": "s1"}]}'))
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert calls(provider, CHAT) == 2
    assert "vector_anchor: Field required" in provider.records[1].prompt


def test_reply_that_stays_broken_fails_the_batch_and_is_kept(driver: Driver, provider: ProviderServer) -> None:
    provider.script.answer = lambda _: "sorry, no"
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert set(states(driver.context).values()) == {"FAILED"}
    row = batch_rows(driver.context)[0]
    assert (row.status, row.reply) == ("FAILED", "sorry, no")
    assert "not JSON" in row.error
    assert calls(provider, CHAT) == 2


def test_a_reply_cut_at_the_token_limit_gives_advice(driver: Driver, provider: ProviderServer) -> None:
    provider.push(Fault("truncated", text='{"songs": ['))
    add_songs(driver.context, 5)
    driver.run(driver.start())
    assert "queue_batch_size" in str(batch_rows(driver.context)[0].error)
    assert calls(provider, CHAT) == 1


def broken(record: Record, *wrong: str) -> str:
    """A reply in which the answers about the songs with these titles have a wrong shape."""
    analyses = [
        songs.analysis(s, **({"embedding_tags": 5} if s["title"] in wrong else {})) for s in songs.in_prompt(record)
    ]
    return json.dumps({"songs": analyses})


def traced(driver: Driver) -> list[tuple[str, str]]:
    with driver.context.db.read() as session:
        return [tuple(row) for row in session.execute(select(AiCall.operation, AiCall.status).order_by(AiCall.id))]


def test_repair_requests_only_songs_without_a_valid_answer(driver: Driver, provider: ProviderServer) -> None:
    provider.script.answer = lambda r: (
        broken(r, "Song 3", "Song 7") if len(songs.in_prompt(r)) == 10 else songs.answer(r)
    )
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert [len(songs.in_prompt(r)) for r in provider.records if r.path == CHAT] == [10, 2]
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert traced(driver) == [("batch_metadata", "ok"), ("repair_metadata", "ok"), ("embed_songs", "ok")]


def test_failed_repair_loses_no_valid_answer_of_either_reply(driver: Driver, provider: ProviderServer) -> None:
    provider.script.answer = lambda r: (
        broken(r, "Song 3", "Song 7") if len(songs.in_prompt(r)) > 2 else broken(r, "Song 7")
    )
    add_songs(driver.context, 10)
    driver.run(driver.start())
    # Song 7 alone goes back, and fails when its own reply and repair are unusable; the other nine were paid once.
    assert [[s["title"] for s in songs.in_prompt(r)] for r in provider.records if r.path == CHAT][1:] == [
        ["Song 3", "Song 7"],
        *[["Song 7"]] * 2,
    ]
    assert states(driver.context) == {f"Song {n}": "FAILED" if n == 7 else "COMPLETED" for n in range(1, 11)}
    first = batch_rows(driver.context)[0]
    assert (first.status, first.saved, first.left_out) == ("COMPLETED", 9, 1)
    assert "--- after a repair" in first.reply, "both unusable replies are stored"


def test_truncated_reply_keeps_the_answers_before_its_end(driver: Driver, provider: ProviderServer) -> None:
    whole: list[str] = []

    def cut(record: Record) -> Fault | None:
        if record.path != CHAT or whole:
            return None
        whole.append(songs.answer(record))
        return Fault("truncated", text=whole[0][: int(len(whole[0]) * 0.55)])

    provider.script.rule = cut
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert [len(songs.in_prompt(r)) for r in provider.records if r.path == CHAT] == [10, 5]
    assert set(states(driver.context).values()) == {"COMPLETED"}


def test_reply_with_words_around_it_is_used_without_paying_for_a_repair(
    driver: Driver, provider: ProviderServer
) -> None:
    provider.script.answer = lambda r: f"Here you are:\n```json\n{songs.answer(r)}\n```\nAnything else?"
    add_songs(driver.context, 10)
    driver.run(driver.start())
    assert calls(provider, CHAT) == 1
    assert set(states(driver.context).values()) == {"COMPLETED"}


@pytest.mark.usefixtures("others_succeed")
def test_impossible_repair_keeps_the_valid_answers_for_the_next_run(driver: Driver, provider: ProviderServer) -> None:
    provider.script.answer = lambda r: broken(r, "Song 3")
    provider.script.rule = lambda r: Fault(status=500) if r.path == CHAT and len(songs.in_prompt(r)) == 1 else None
    add_songs(driver.context, 10)
    run_id = driver.start()
    for _ in range(3):
        driver.run(run_id)
        driver.skip_waits()
    assert set(states(driver.context).values()) == {"FAILED"}
    assert calls(provider, CHAT) == 4
    provider.script.rule, provider.script.answer = None, songs.answer
    gates.breaker(driver.context, "ai:text").close()
    driver.run(driver.start(failed=True))
    assert set(states(driver.context).values()) == {"COMPLETED"}
    assert [len(songs.in_prompt(r)) for r in provider.records if r.path == CHAT] == [10, 1, 1, 1, 1]


def test_stop_during_a_repair_keeps_the_valid_answers(driver: Driver, provider: ProviderServer) -> None:
    provider.script.answer = lambda r: broken(r, "Song 3")
    add_songs(driver.context, 10)
    run_id = driver.start()
    driver.run(run_id, launches=1)
    (batch,) = plan.plan(driver.context, run_id).batches
    driver.step(batch.id, batch.mode, Step.METADATA)
    service.stop(driver.context)
    provider.script.answer = songs.answer
    driver.run(driver.start())
    assert [len(songs.in_prompt(r)) for r in provider.records if r.path == CHAT] == [10, 1]
    assert set(states(driver.context).values()) == {"COMPLETED"}
