"""Parsing takes steps in proportion to a reply's length, whatever the reply holds.

Regular expressions take no steps here: `tests/fuzz/test_patterns.py` proves that each is linear.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import get_args

import pytest

from pipeline.flows.music.rules import schemas
from pipeline.flows.screenshots.rules import expansion, node_merge, shard_merge, vision_reply
from pipeline.providers import replies
from pipeline.reading.replies.form import Form, Kind, Parsed
from pipeline.reading.replies.forms import parse
from pipeline.reading.replies.problems import Expected, check
from tests.support.model_replies import SIZE
from tests.support.steps import steps_of

Make = Callable[[int], str]
RATIO = 1.15
"""The most steps for each character of a text twice as long, as a multiple."""

REPEATED = r"""[ ![ ]( ]: *_ _a &amp;&&& < <td <td> <tr> <a/" <!-- <script> </table> <table><tr><td> <b><i> <b></b>
<ul><li> </ul> <p> <pre><code> <math> <sub> <http:// ![a]( ](a:b(c) \ \( \(\[ \$ $ $$ $a\n ` `a ``_` ```\n ```a\n ~~~\n
_```a\n ___~~~a\n__~~~b\n _```\n__x\n | a|\n |a|\n|-|\n a|b\n-|-\n |a|\n|-|\n|b|\n\n -\n --- #_ >_ -_a\n 1._a\n \n a\n\n
_ ```markdown\n </s> <think> &#0 &#x f" {"bbox": {"label":"a" "text":" \" <|ref|> <|det|>[[ <|box_start|> ![t](1,
<text> <inline> <list_item> <ordered_list> <fcel> <ucel><nl> <lcel>a <otsl> <div/data-bbox="1,2,3,4">"""
UNITS = [unit.replace("\\n", "\n").replace("_", " ").replace("/", " ") for unit in REPEATED.split()]


def _lengths(mark: str, line_end: str, *, shrink: bool = False, indent: str = "") -> Make:
    """Return a maker of lines that begin with ever more, or ever fewer, marks."""

    def make(length: int) -> str:
        numbers = range(3, int((2 * length) ** 0.5))
        return "".join(f"{indent}{mark * number}{line_end}" for number in (reversed(numbers) if shrink else numbers))

    return make


def _object(text: str, category: str = "Text") -> str:
    return json.dumps([{"bbox": [1, 2, 3, 4], "category": category, "text": text}])


MADE: Mapping[str, Make] = {
    **{
        f"{mark} {line_end!r} {shrink} {indent!r}": _lengths(mark, line_end, shrink=shrink, indent=indent)
        for mark in "`~"
        for line_end in ("\n", "a\n", " ", "a|<b ")
        for shrink in (False, True)
        for indent in ("", " ")
    },
    "fences in a list that ends": lambda n: " ```a\n" * (n // 6) + "x",
    "indents that shrink": lambda n: "   ~~~a\n  ~~~b\n ~~~c\n" * (n // 21) + "x",
    "front matter": lambda n: "---\n" + "is_table: a\n" * (n // 12),
    "Markdown's wide table": lambda n: "|a" * (n // 4) + "|\n" + "|-" * (n // 4) + "|\n",
    "Markdown's wide head": lambda n: "|a" * (n // 8) + "|\n" + "|-" * (n // 8) + "|\n" + "|b|\n" * (n // 8),
    "HTML's wide head": lambda n: "<table><tr>" + "<td>" * (n // 8) + "<tr><td>a" * (n // 18),
    "HTML's nested tables": lambda n: "<table><tr><td>" * (n // 40) + "</td></tr></table>" * (n // 40),
    "HTML's spans": lambda n: "<table><tr>" + "<td colspan=1000 rowspan=1000>" * (n // 30),
    "HTML's spans that meet": lambda n: (
        "<table><td>a<td rowspan=1000>b" + "<tr><td colspan=1000 rowspan=1000>c" * (n // 35)
    ),
    "HTML's spans of many tables": lambda n: (
        ("<table><td colspan=1000 rowspan=1000>" + "<tr><td>" * 99 + "</table>\n\n") * (n // 840)
    ),
    "OTSL's wide head": lambda n: "<fcel>" * (n // 12) + "<nl>" + "<fcel><nl>" * (n // 20),
    "OTSL's wide cell": lambda n: "<fcel>a" + "<lcel>a" * (n // 7),
    "elements in elements": lambda n: "<inline>" * (n // 16) + "a" * (n // 2),
    "blanks before tags": lambda n: " " * (n // 2) + "a" + "<p>" * (n // 6),
    "lists in lists": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "quotes in a text": lambda n: '[{"bbox": [1], "label": "a", "text": "' + '\\q"' * (n // 3) + '"}]',
    "a list of objects": lambda n: "[" + ",".join(_object(str(at))[1:-1] for at in range(n // 60)) + "]",
    **{
        f"{category} of {unit!r}": lambda n, category=category, unit=unit: _object(unit * (n // len(unit)), category)
        for category in ("Text", "Table", "List-item", "Code")
        for unit in (" ```a\n", "- a\nb\n", "a\n\n", "|a|\n|-|\n\n", "<td>")
    },
}


def _read(kind: Kind, text: str) -> int:
    parsed: list[Parsed] = []
    steps = steps_of(lambda: parsed.append(parse(Form(kind), text, SIZE)))
    return steps + len(parsed[0].text)


def _check(text: str) -> int:
    expected = Expected(words=[*"abc"] * 300, prompt="a\n" * 200)
    return steps_of(lambda: check(text, Parsed(text), finish_reason="stop", expected=expected))


def _index(text: str) -> None:
    sent = {1: 101, 2: 102}
    with suppress(replies.BadReply):
        index = vision_reply.best_index(["", text], sent).value
        shard_merge.merge_shards([index, index], 3)


FLOWS: Mapping[str, Callable[[str], object]] = {
    "index": _index,
    "expansion": expansion.usable_expansion,
    "merge": node_merge.read_merge,
    "songs": schemas.usable,
}
SEGMENT = '{"screen_ids":[1],"event":{"title":"%d","summary":"s"}}'
JSON: Mapping[str, Make] = {
    **{
        unit: lambda n, unit=unit: unit * (n // len(unit))
        for unit in ("[", "{", '"', "```\n", "\\", "[ ", '"songs":[', '"segments" ', '{"segments":[{', '"a":', "{},")
    },
    "segments": lambda n: '{"segments":[' + ",".join(SEGMENT % at for at in range(n // 55)) + "]}",
    "half a list": lambda n: '{"segments":[' + ",".join(SEGMENT % at for at in range(n // 55)) + ",",
    "songs": lambda n: '{"songs":[' + ",".join(f'{{"id":"{at}"}}' for at in range(n // 15)) + "]}",
}


def _slower(cost: Callable[[str], int], makers: Mapping[str, Make], size: int) -> dict[str, float]:
    """Return the makers of texts that cost more than is linear, with the ratio."""
    found = {}
    for name, make in makers.items():
        texts = make(size), make(2 * size)
        once, twice = (cost(text) / max(len(text), 1) for text in texts)
        if twice > RATIO * once + 0.2:
            found[name] = twice / once
    return found


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(("markdown", 2_000), ("json_blocks", 2_000), ("otsl", 2_000), ("doctags", 2_000)),
        *(pytest.param(kind, 20_000, marks=[pytest.mark.slow, pytest.mark.rotating]) for kind in get_args(Kind)),
        pytest.param("markdown", 100_000, marks=[pytest.mark.slow, pytest.mark.rotating]),
    ],
)
def test_a_reply_takes_linear_steps(kind: Kind, size: int) -> None:
    makers = {unit: lambda n, unit=unit: unit * (n // len(unit)) for unit in UNITS}
    assert _slower(lambda text: _read(kind, text), {**makers, **MADE}, size) == {}


def test_judging_a_reply_takes_linear_steps() -> None:
    """The end of a reply is compared with 4,096 characters before it."""
    assert _slower(_check, {name: make for name, make in MADE.items() if name[0] in "`~" and "a|" in name}, 8_000) == {}


@pytest.mark.parametrize("flow", FLOWS)
def test_a_flows_reply_takes_linear_steps(flow: str) -> None:
    def cost(text: str) -> int:
        with suppress(replies.BadReply):
            return steps_of(lambda: FLOWS[flow](text))
        return 0

    assert _slower(cost, JSON, 20_000) == {}
