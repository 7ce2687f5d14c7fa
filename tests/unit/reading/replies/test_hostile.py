"""Hostile replies: nothing of them is active, and none takes long."""

import json
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reading.replies.form import MAX_CHARACTERS, Form, Kind, Region
from pipeline.reading.replies.forms import parse
from tests.support.active_markdown import ATTACKS, active
from tests.support.model_replies import SIZE


def _replies(text):
    yield Form(), text
    yield Form("front_matter"), text
    yield Form("ref_det"), f"<|ref|>text<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>\n{text}"
    yield Form("json_blocks"), json.dumps([{"bbox": [1, 2, 3, 4], "category": "Text", "text": text}])
    yield Form("json_blocks"), json.dumps([{"bbox": [1, 2, 3, 4], "category": "Formula", "text": text}])
    yield Form("md_boxes"), f"![text](1,2,3,4) {text}"
    yield Form("html_blocks"), f'<div data-bbox="1 2 3 4" data-label="Text">{text}</div>'
    yield (
        Form("html_blocks"),
        f'<div data-bbox="1 2 3 4" data-label="Table"><table><td>{text}</table></div>',
    )
    yield Form("doctags"), f"<text><loc_1><loc_2><loc_3><loc_4>{text}</text>"
    yield Form("doctags"), text
    yield Form("otsl"), f"<fcel>{text}<fcel>a<nl><fcel>b<lcel><nl>"


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_active_is_left(attack):
    for form, raw in _replies(attack):
        assert active(parse(form, raw, SIZE).text) == [], form.kind


_MARKS = """$$ ]( ![ ]: --> <!-- <x y= <b> </b> <sub> </sub> <br> <p> <pre> <code> </code> <math> </math>
<table> </table> <td> x java - >"""
_PIECES = st.sampled_from(
    [*ATTACKS, *"<>!`$|\\[]()*_~#&\n ", *_MARKS.split(), "\n\n", "```\n", "~~~\n", "|---|\n", "- ", "    ", "> "]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_PIECES, max_size=14).map("".join))
def test_no_combination_of_markup_becomes_active(text):
    for form, raw in _replies(text):
        parsed = parse(form, raw, SIZE)
        assert active(parsed.text) == [], form.kind
        assert all(isinstance(region, Region) for region in parsed.regions)


_HANGING = r"""< <!-- <table><tr><td> <td/colspan=1000/rowspan=1000> ![a]( [a]: ` $ \( \[ \$ <b><i> <ul><li> [ " <|ref|>
a[[ | <div/data-bbox="1,2,3,4"> {"bbox": {"a":[ <|box_start|> ![t](1, <text><loc_1> <ordered_list> <fcel> <ucel> <think>
& - 0 \n ```\n a|\n-|\n"""

_CHILD = """
import resource, sys
from typing import get_args
resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))
from pipeline.reading.replies.form import Form, Kind
from pipeline.reading.replies.problems import Expected, check
from pipeline.reading.replies.forms import parse
for piece in sys.argv[1:]:
    piece = piece.replace("\\\\n", "\\n")
    raw = piece * (1_000_000 // len(piece))
    for kind in get_args(Kind):
        if kind == "front_matter":
            continue  # below its facts it is Markdown
        parsed = parse(Form(kind), raw, (1000, 1400))
        assert not parsed.complete or kind == "markdown"
    check(raw, parsed, finish_reason="stop", expected=Expected(words=["a"] * 30))
"""


@pytest.mark.slow
@pytest.mark.rotating
def test_a_megabyte_of_hostile_text_neither_hangs_nor_fills_memory():
    subprocess.run([sys.executable, "-c", _CHILD, *_HANGING.split()], check=True, timeout=500)


def test_ten_megabytes_of_json_are_cut():
    item = '{"bbox": [1, 2, 3, 4], "category": "Text", "text": "Words."}'
    parsed = parse(Form("json_blocks"), f"[{', '.join([item] * (10_000_000 // len(item)))}]", SIZE)
    assert not parsed.complete
    assert len(parsed.blocks) < MAX_CHARACTERS // len(item)


_NUMBERS = [
    f'<p data-bbox="1,2,3,4"><table><td>&#{"9" * 5_000};</table>\n<img alt="&#{"9" * 5_000}">',
    f'[{{"bbox": [{"9" * 400}, 2, 3, 4], "category": "Text", "text": "a"}}]',
]
"""Numbers that Python converts to no character and to no float."""


@pytest.mark.parametrize("kind", get_args(Kind))
def test_odd_replies_are_parsed(kind):
    for raw in (
        "[" * 100_000,
        '{"a":' * 20_000,
        "\x00",
        "\ud800",
        "",
        " ",
        "null",
        "NaN",
        "1e999",
        "İ<TABLE>",
        *_NUMBERS,
    ):
        parse(Form(kind), raw, SIZE)
