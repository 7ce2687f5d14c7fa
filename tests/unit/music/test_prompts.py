import json
from typing import Any

import pytest

from pipeline.engine.states import IllegalTransition
from pipeline.flows.music.rules.findings import song_columns, to_embed, vector_text
from pipeline.flows.music.rules.prompts import SongFacts, prompt, repair_prompt
from pipeline.flows.music.rules.schemas import Analysis, dump, load, matched, read_reply
from pipeline.flows.music.states import PIPELINE, Mode, PipelineEvent, PipelineState, Step, step_after_metadata
from pipeline.providers.replies import BadReply
from pipeline.settings import MusicSettings
from tests.support.songs import analysis

SONG = SongFacts(7, "s7", "Rain", "Ann", "Jazz")


def analysed(**changes: Any) -> Analysis:
    return Analysis.model_validate(analysis({"id": "s7", "title": "Rain"}) | changes)


def test_description_tags_and_mood_follow_the_formulas_of_the_design() -> None:
    columns = song_columns(analysed(), SONG)
    tags = json.loads(columns["tags"])
    assert columns["description"] == "Sound of Rain.\n\n[Imagery] Image of Rain."
    assert tags == [*tags[:2], "#Genre:Ambient", "Rain", "Night drive", "#Spectrum:Full"]
    assert columns["mood"] == tags[0]


def test_no_mood_is_called_unknown_and_empty_tags_leave_no_trace() -> None:
    tags = {"mood_coord": [], "objects": None, "scene_tag": None, "spectrum": "", "energy": None}
    columns = song_columns(analysed(embedding_tags=tags), SONG)
    assert (columns["mood"], json.loads(columns["tags"]), columns["energy_level"]) == ("Unknown", [], None)


def test_vector_text_names_song_and_findings_and_is_empty_where_the_model_says_nothing() -> None:
    text = vector_text(analysed(), SONG)
    assert text.startswith("Title: Rain\nArtist: Ann\nGenre: Ambient\nSound: Sound of Rain.")
    empty = analysed(vector_anchor={}, embedding_tags={})
    assert vector_text(empty, SONG) == ""


def test_only_songs_with_text_are_embedded_in_the_order_of_their_ids() -> None:
    assert to_embed({1: "a", 2: "", 3: "c", 4: "  "}) == ([1, 3], ["a", "c"])


@pytest.mark.parametrize("wrap", ["{}", "```json\n{}\n```", "  {}\n"])
@pytest.mark.parametrize("bare", [True, False])
def test_reply_is_read_as_object_or_list_bare_or_fenced(wrap: str, bare: bool) -> None:
    songs = [analysis({"id": "a", "title": "A"})]
    text = json.dumps(songs if bare else {"songs": songs})
    assert [song.id for song in read_reply(wrap.replace("{}", text))] == ["a"]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("", "not JSON"),
        ('{"songs": [', "not JSON"),
        ("[" * 100_000, "JSON|deeply"),
        ('"text"', "the reply"),
        ("{}", "songs"),
        ('{"songs": {}}', "songs"),
        ('{"songs": [{"id": "a"}]}', "vector_anchor"),
        ('{"songs": [{"id": "", "vector_anchor": {}, "embedding_tags": {}}]}', "id"),
        ('{"songs": [{"id": "a", "vector_anchor": {}, "embedding_tags": {"energy": NaN}}]}', "energy"),
        ('{"songs": [{"id": "a", "vector_anchor": {}, "embedding_tags": {"energy": 99}}]}', "energy"),
        ('{"songs": [{"id": "a", "vector_anchor": {}, "embedding_tags": {"objects": "x"}}]}', "objects"),
    ],
)
def test_a_reply_of_another_shape_is_refused_with_the_reason(reply: str, says: str) -> None:
    with pytest.raises(BadReply, match=says):
        read_reply(reply)


def test_empty_list_is_a_valid_reply() -> None:
    assert read_reply('{"songs": []}') == []


def test_wrong_extra_and_repeated_ids_are_ignored_and_counted() -> None:
    answers = [analysed(id=name) for name in ("s7", "s7", "other", " s7 ")]
    by_song, ignored = matched(answers, {"s7": 7, "s8": 8})
    assert (list(by_song), ignored) == ([7], 3)


def test_numbers_as_ids_are_texts() -> None:
    assert read_reply(json.dumps([analysis({"id": "12", "title": "x"}) | {"id": 12}]))[0].id == "12"


def test_text_that_databases_refuse_is_cleaned() -> None:
    song = analysed(vector_anchor={"acoustic_model": "a\x00b\ud800", "semantic_push": None})
    assert song.vector_anchor.acoustic_model == "ab?"
    assert load(dump({7: song})) == {7: song}


def test_prompt_holds_ids_titles_and_artists_alone() -> None:
    assert json.loads(prompt([SONG])) == [{"id": "s7", "title": "Rain", "artist": "Ann"}]
    repair = repair_prompt([SONG], "{bad", "no JSON")
    assert repair.startswith(prompt([SONG]))
    assert "{bad" in repair
    assert "no JSON" in repair


def test_steps_follow_the_mode() -> None:
    assert step_after_metadata(Mode.FULL, texts=True) is Step.EMBED
    assert step_after_metadata(Mode.FULL, texts=False) is Step.SAVE
    assert step_after_metadata(Mode.METADATA, texts=True) is Step.SAVE


def test_pipeline_refuses_to_start_unless_it_is_idle() -> None:
    for state in PipelineState:
        if state is not PipelineState.IDLE:
            with pytest.raises(IllegalTransition):
                PIPELINE.target(state, PipelineEvent.START)


@pytest.mark.parametrize("url", ["ftp://x", "https://u:p@host", "https://host/?t=1", "host"])
def test_server_address_takes_no_password_and_no_nonsense(url: str) -> None:
    with pytest.raises(ValueError):
        MusicSettings(server_url=url)


def test_server_address_may_end_as_people_write_it() -> None:
    assert MusicSettings(server_url="https://host/navi/rest/").server_url == "https://host/navi"
