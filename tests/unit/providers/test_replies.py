import json

import pytest
from pydantic import BaseModel

from pipeline.providers.replies import BadReply, as_json, as_model, clean, lists_in, only_list_in, valid


class Thing(BaseModel):
    name: str
    size: int = 0


class Things(BaseModel):
    things: list[Thing]


THINGS = {"things": [{"name": "a"}, {"name": "b", "size": 2}]}


@pytest.mark.parametrize("reply", ["{}", "```json\n{}\n```", "```\n{}```", "  {}\n"])
def test_json_is_read_bare_or_in_a_fence(reply: str) -> None:
    assert as_json(reply.replace("{}", json.dumps(THINGS))) == THINGS


@pytest.mark.parametrize(
    ("reply", "says"),
    [("", "not JSON"), ("sure: {}", "not JSON"), ("[" * 100_000, "JSON|deeply"), (" " * 1_000_001, "characters")],
)
def test_a_reply_without_valid_json_is_refused_with_the_reason(reply: str, says: str) -> None:
    with pytest.raises(BadReply, match=says):
        as_json(reply)


def test_problems_are_named_by_their_place_and_only_the_first_five() -> None:
    with pytest.raises(BadReply, match="not a JSON object"):
        as_model(Things, [])
    with pytest.raises(BadReply, match=r"things\.1\.name: Field required"):
        as_model(Things, {"things": [{"name": "a"}, {}]})
    with pytest.raises(BadReply, match=r"; and 3 more$"):
        as_model(Things, {"things": [{}] * 8})


def test_valid_items_are_kept_beside_invalid_ones() -> None:
    assert [thing.name for thing in valid(Thing, [{"name": "a"}, {}, 5, None, {"name": "b"}])] == ["a", "b"]


def test_lists_of_a_cut_reply_are_read_by_their_names() -> None:
    text = json.dumps({"others": [1, 2], **THINGS})
    cut = text[: text.rindex('"size"')]
    assert lists_in(text, ("things", "others", "none")) == {**THINGS, "others": [1, 2], "none": []}
    assert lists_in(cut, ("things", "others")) == {"things": [{"name": "a"}], "others": [1, 2]}
    assert lists_in("[1]", ("things",)) == {"things": []}


def test_the_only_list_may_be_the_whole_reply_and_may_be_cut_off() -> None:
    things = THINGS["things"]
    whole = json.dumps(things)
    assert only_list_in(json.dumps(THINGS), "things") == only_list_in(whole, "things") == things
    assert only_list_in(f"Here they are: {whole[:-3]}", "things") == things[:1]
    assert only_list_in('{"things": {}}', "things") == only_list_in("sorry", "things") == []


def test_text_is_fit_for_every_database() -> None:
    assert clean(" a\x00b\ud800 ") == "ab?"
    assert clean(5) == "5"
