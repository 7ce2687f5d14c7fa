"""The certainty of recognised words, from the engine to the blocks of a page."""

from collections.abc import Sequence

from pipeline.reading.layout.certainty import UNCERTAIN, uncertain_share
from pipeline.reading.layout.model import Region, Rule, Run
from pipeline.reading.layout.page import Line, PageContent, as_dicts, convert, render
from pipeline.reading.ocr import direction, orientation
from pipeline.reading.ocr.engine import Quad, Text, _of_words

_LOW = UNCERTAIN - 0.2


def _line(text: str, sure: tuple[float, ...], top: float = 100, left: float = 50) -> Line:
    return Line(text, left, top, left + 7 * len(text), top + 14, 10.0, sure=sure)


def test_a_word_has_the_certainty_of_its_least_certain_character() -> None:
    sure = [0.99, 0.9, 0.99, 1.0, 0.5, 0.99]
    assert _of_words("ab cde"[:6], 0.9, sure) == (0.9, 0.5)
    assert _of_words("ab cde", 0.9, sure[:3]) == (0.9, 0.9)  # fewer values than characters
    assert _of_words("", 0.0, [0]) == ()


def test_a_turned_and_scaled_line_keeps_the_certainty_of_its_words() -> None:
    def read(quads: Sequence[Quad]) -> list[Text]:
        return [Text("two words", 0.95, (0.9, 0.4)) for _ in quads]

    quad: Quad = ((0, 0), (90, 0), (90, 10), (0, 10))
    (piece,) = direction.legible(direction.read_pieces([quad], read))
    line = orientation.scaled(orientation.as_line(piece), 2.0)
    (upright,) = orientation.upright(PageContent(200, 300, (line._replace(angle=90),)))[0].lines

    assert line.sure == upright.sure == (0.9, 0.4)


def test_blocks_list_their_uncertain_words_and_markdown_does_not_change() -> None:
    lines = (
        _line("The first line of a paragraph with one", (0.99,) * 8),
        _line("wnnderful word in it.", (_LOW, 0.99, 0.99, 0.98), top=116),
    )
    blocks = convert(PageContent(400, 600, lines))
    (block,) = as_dicts(blocks, 1)

    assert render(blocks) == "The first line of a paragraph with one wnnderful word in it."
    assert block["uncertain"] == [{"text": "wnnderful", "offset": 39, "confidence": round(_LOW, 3)}]
    assert 0.85 < block["confidence"] < 0.99
    assert uncertain_share(blocks) == 9 / sum(len(word) for word in block["text"].split())


def test_a_table_lists_the_uncertain_words_of_its_cells() -> None:
    lines, rules = [], []
    for row in range(3):
        lines += [
            _line(f"item {row}", (0.99, 0.99), 104 + 20 * row, 60),
            _line(f"{row}9", (_LOW if row == 2 else 0.99,), 104 + 20 * row, 160),
        ]
    rules += [Rule(50, 100 + 20 * row, 250, 100 + 20 * row) for row in range(4)]
    rules += [Rule(x, 100, x, 160) for x in (50, 150, 250)]
    (table,) = as_dicts(convert(PageContent(400, 600, tuple(lines), tuple(rules))), 1)

    assert table["type"] == "table"
    (word,) = table["uncertain"]
    assert word["text"] == table["text"][word["offset"] :][:2] == "29"


def test_text_of_a_text_layer_has_no_certainty() -> None:
    blocks = convert(PageContent(400, 600, (_line("Plain text of a text layer.", ()),)))

    assert uncertain_share(blocks) is None
    assert not {"confidence", "uncertain"} & set(as_dicts(blocks, 1)[0])
    assert Run("x").style.sure is None


def test_words_in_a_figure_count() -> None:
    lines = (
        _line("Pressure valve", (0.99, _LOW), top=120),
        _line("Inlet", (0.99,), top=200),
        _line("Outlet", (0.99,), top=200, left=200),
        _line("Drain", (_LOW,), top=280),
    )
    seen = (Region("figure", (40, 100, 300, 320), 0.9),)
    converted = orientation.blocks(PageContent(600, 800, lines, regions=seen), None)
    (figure,) = as_dicts(converted, 1)

    assert (figure["type"], figure["text"]) == ("picture", "Pressure valve\nInlet Outlet\nDrain")
    assert [(word["text"], word["offset"]) for word in figure["uncertain"]] == [("valve", 9), ("Drain", 28)]
    assert uncertain_share(converted) == 10 / 29


def test_markdown_marks_a_paragraph_that_recognition_guessed() -> None:
    words = "Dean Makgaket I hope this letten finds you"
    guessed, sure = (_line(words, (share,) * 8, top) for share, top in ((0.7, 100), (0.9, 300)))
    assert render(convert(PageContent(600, 800, (guessed, sure)))) == f"[uncertain] {words}\n\n{words}"
    short = _line("Makgaket", (0.4,))
    chinese = _line("人之初性本善性相近習相遠苟不教性乃遷教之道貴以專", (0.4,), 200)
    assert "[uncertain]" not in render(convert(PageContent(600, 800, (short, chinese))))
