"""The parsers and checks over collections of replies, good and bad."""

import pytest

from tests.support.model_replies import ModelReply, replies


def _names(reply: ModelReply) -> str:
    return reply.name


@pytest.mark.parametrize("reply", replies("good"), ids=_names)
def test_good_replies_have_no_problems_and_become_the_expected_markdown_and_boxes(reply):
    parsed = reply.parse()
    assert reply.problems() == set()
    assert parsed.rotation == reply.facts.get("rotation", 0)
    assert parsed.blank == (reply.facts.get("blank", False) and reply.form.kind in {"front_matter", "html_blocks"})
    if "text" in reply.facts:
        assert parsed.text == reply.facts["text"].strip("\n")
    if "boxes" in reply.facts:
        assert [block["bbox"] for block in parsed.blocks] == reply.facts["boxes"]
    if "regions" in reply.facts:
        assert len(parsed.regions) == reply.facts["regions"]


@pytest.mark.parametrize("reply", replies("bad"), ids=_names)
def test_broken_replies_are_noticed(reply):
    assert reply.problems() & set(reply.facts["problems"])
