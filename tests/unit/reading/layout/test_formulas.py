"""Formulas: short ones are LaTeX in their sentence, display formulas one block that shows no salad of their signs."""

import time
from dataclasses import replace

import pytest

from pipeline.reading.layout import formulas as formulas_of
from pipeline.reading.layout import inline, notation
from pipeline.reading.layout.model import Formula, Line, Region, Rule, Run, Span, Style
from pipeline.reading.layout.page import as_dicts, convert, render
from pipeline.reading.layout.sections import sections
from tests.support.layout import grid, line, page, prose

MATH, SIGN, TALL, ROMAN = (Style(font=font) for font in ("CMMI10", "CMSY10", "CMEX10", "CMR8"))
UP, DOWN = MATH._replace(shift=1), ROMAN._replace(shift=-1)


def runs(*parts):
    return tuple(Run(text, style) for text, style in parts)


def math(text, left, top=160.0, style=MATH, size=10.0):
    return line(text, left, top, size, style)


def displayed(*lines, rules=(), regions=(), **more):
    above, below = prose("above", 4, 50, 100), prose("below", 6, 50, 220)
    content = page(*above, *lines, *below, rules=rules)
    return convert(replace(content, regions=tuple(regions), **more))


def formulas(blocks):
    return [block for block in blocks if isinstance(block, Formula)]


@pytest.mark.parametrize(
    ("parts", "markdown"),
    [
        ([("for ", ROMAN), ("x", MATH), ("i", DOWN), ("2", UP), (", we", ROMAN)], "for $x_i^2$, we"),
        ([("y", MATH), ("1", DOWN), (" = ", ROMAN), ("σ", MATH), ("2", UP), ("+ 3", ROMAN)], "$y_1 = σ^2+ 3$"),
        ([("(", ROMAN), ("a", MATH), ("n", DOWN), (").", ROMAN)], "$(a_n)$."),
        ([("f(", ROMAN), ("a", MATH), ("n", DOWN), (").", ROMAN)], "f($a_n$)."),
        ([("σ", MATH), ("slope", DOWN), (" of $5", ROMAN)], "$σ_{\\text{slope}}$ of \\$5"),
        ([("pays ", ROMAN), ("x", MATH), ("i", DOWN), (".", ROMAN), ("3", ROMAN._replace(shift=1))], None),
        ([("10", ROMAN), ("−", SIGN._replace(shift=1)), ("3", ROMAN._replace(shift=1)), (" m", ROMAN)], "$10^{−3}$ m"),
    ],
)
def test_raised_and_lowered_parts_of_variables_are_latex(parts, markdown):
    result = inline.to_markdown(runs(*parts))
    assert result == (markdown or "pays $x_i$.<sup>3</sup>")


@pytest.mark.parametrize(
    ("parts", "markdown"),
    [
        ([("H", ROMAN), ("2", DOWN), ("O", ROMAN)], "H<sub>2</sub>O"),
        ([("word", ROMAN), ("1", ROMAN._replace(shift=1)), (" of x", ROMAN)], "word<sup>1</sup> of x"),
        ([("Author", ROMAN), ("∗", SIGN._replace(shift=1))], "Author<sup>∗</sup>"),
        ([("x costs $5", ROMAN)], "x costs $5"),
    ],
)
def test_marks_of_notes_and_text_in_text_fonts_stay_as_they_are(parts, markdown):
    assert inline.to_markdown(runs(*parts)) == markdown


@pytest.mark.parametrize(
    "font", ["CMMI10", "LMMathItalic10", "CambriaMath", "STIXTwoMath", "MathematicalPi", "rtxmi", "Symbol", "MSBM10"]
)
def test_fonts_of_formulas(font):
    assert notation.is_math_font(font)


@pytest.mark.parametrize(
    "font", ["CMR10", "Times", "LMRoman10", "Cambria", "STIXTwoText", "Wingdings", "MicrosoftSans"]
)
def test_fonts_of_text(font):
    assert not notation.is_math_font(font)


def test_a_display_formula_is_one_block_with_its_number_between_the_paragraphs():
    parts = [math("α", 150), math("β = γ", 175, 154), math("− δ", 170, 168), line("(12)", 380, 160)]
    blocks = displayed(*parts)
    (formula,) = formulas(blocks)
    assert (formula.number, formula.words) == ("(12)", "")
    assert "β" in formula.text
    assert formula.box[0] == 140
    assert formula.box[3] < 185
    text = render(blocks)
    assert "\n\n[formula] (12)\n\n" in text
    assert text.index("above") < text.index("[formula]") < text.index("below")
    data = as_dicts(blocks, 1)
    assert [each["type"] for each in data] == ["paragraph", "formula", "paragraph"]
    assert data[1] | {"text": "", "bbox": []} == {
        "page": 1, "type": "formula", "text": "", "bbox": [], "link": "", "number": "(12)",
    }  # fmt: skip
    assert (sections(text, data) or [])[1] == "[formula] (12)"


def test_a_fraction_at_the_left_is_a_formula_too():
    rule = Rule(50, 166, 80, 166)
    assert formulas(displayed(math("a + b", 52, 155), math("2 c", 55, 168), rules=[rule]))


def test_words_in_a_formula_stay_readable():
    cases = [math("f = x", 120, 160), math("{", 160, 150, TALL), math("x", 170, 154), line("if positive", 200, 154)]
    blocks = displayed(*cases, math("0", 170, 168), line("otherwise", 200, 168))
    assert "[formula] if positive otherwise" in render(blocks)


@pytest.mark.parametrize(
    "others",
    [
        [math("x + y", 50)],  # a paragraph's line
        [math("x = y", 150), line("Length of the row", 200, 160)],  # a table's row
        [math("− x = y", 150)],  # an item
        [math("x", 150)],  # a letter
        [math("x = y", 150, size=16.0)],  # a title
        [line("r = s", 150, 160)],  # text
    ],
)
def test_text_with_variables_is_not_a_formula_of_its_own(others):
    assert not formulas(displayed(*others))


def test_many_signs_and_many_lines_on_one_page_take_no_more_than_seconds():
    signs = [math("x = y", 150, 40 * n) for n in range(700)]
    started = time.process_time()
    assert formulas_of.find(signs, (), (), 10).formulas
    assert not formulas_of.find([*signs, *prose("text", 20_000, 50, 100)], (), (), 10).formulas
    assert time.process_time() - started < 8


def test_variables_of_a_sentence_are_not_cut_out():
    sentence = line("the raw matrix of", 50, 145, right=150)
    spans = (Span("x", 152, 157, MATH), Span("=", 160, 165, ROMAN), Span("y", 168, 173, MATH))
    assert not formulas(displayed(sentence, Line("x = y", 152, 145, 173, 155, 10, spans)))


def test_the_layout_model_shows_formulas_in_recognised_text_unless_they_are_words():
    texts = [f"a line of text that goes on and on until its end {n}" for n in range(8)]
    lines = [Line(text, 50, 100 + 12 * n, 400, 110 + 12 * n, 10, sure=(0.9,) * 13) for n, text in enumerate(texts)]
    seen = Region("equation", (120, 230, 330, 260), 0.9)
    content = page(*lines, Line("E=mc2", 150, 235, 200, 255, 10), Line("(3)", 310, 235, 325, 255, 10))
    blocks = convert(replace(content, regions=(seen,)))
    assert [(formula.text, formula.number) for formula in formulas(blocks)] == [("E=mc2", "(3)")]
    wrong = Region("equation", lines[2].box, 0.9)
    assert not formulas(convert(replace(content, regions=(wrong,))))


def test_formulas_in_the_cells_of_a_ruled_table_stay_in_it():
    cells = [math("α ← β", 150, 162 + 20 * n) for n in range(3)] + [math(f"({n})", 60, 162 + 20 * n) for n in range(3)]
    blocks = displayed(*cells, rules=grid([50, 140, 300], [160, 180, 200, 216]))
    assert formulas(blocks) == []
    assert render(blocks).count("α ← β |") == 3
    assert formulas(displayed(*cells[:3])) != []
