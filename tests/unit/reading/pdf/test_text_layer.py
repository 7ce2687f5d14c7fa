import pypdfium2.raw as pdfium_c
import pytest

from pipeline.providers.local import LocalConverter
from pipeline.providers.protocols import PageRef
from pipeline.reading.layout.model import Line, Rule, Span
from pipeline.reading.layout.page import PageContent, convert, render, to_markdown
from pipeline.reading.pdf import conversion, drawings, pdfium, text_layer, underscores
from pipeline.reading.pdf.pages import Options
from pipeline.reading.pdf.words import Glyphs, _style
from pipeline.settings import Settings
from tests.support.corpus import corpus_file, field_file
from tests.support.samples import Sheet, pdf_bytes, shown, shown_lines, text_pdf

FONTS = {
    "B": "Helvetica-Bold",
    "I": "Times-Italic",
    "M": "Courier",
    "S": "CMSY10",
    "V": "CMMI10",
    "W": "Wingdings-Regular",
    "Y": "Symbol",
    "Z": "ZapfDingbats",
}
WITH_PICTURES = Options(pictures=True)


@pytest.fixture
def page(tmp_path):
    """Read the text layer of a page of these drawing commands, with font F1 and those of `FONTS`."""

    def read(content, extra="", objects=(), box="0 0 600 800"):
        path = tmp_path / "a.pdf"
        path.write_bytes(styled(content, extra, objects, box))
        with pdfium.open_document(path) as document, document.page(1) as opened:
            return text_layer.read(opened).lines, drawings.read(opened)

    return read


def styled(content, extra="", objects=(), box="0 0 600 800"):
    pdf = pdf_bytes([Sheet(content, box, extra, objects)])
    fonts = " ".join(f"/{name}<</Type/Font/Subtype/Type1/BaseFont/{font}>>" for name, font in FONTS.items())
    fonts += "/P 6 0 R" if len(objects) > 1 else ""
    return pdf.replace(b"/Font<</F1 3 0 R>>", f"/Font<</F1 3 0 R {fonts}>>".encode())


def words(font, text, x, y, size=12):
    return f"BT /{font} {size} Tf {x} {y} Td ({text}) Tj ET\n".encode()


def test_words_have_the_style_of_their_font(page):
    [line], _ = page(
        shown("plain ", 50, 700)
        + words("B", "bold", 86, 700)
        + words("I", "leaning", 120, 700)
        + words("M", "code", 170, 700)
    )
    marks = {span.text: (span.style.bold, span.style.italic, span.style.mono) for span in line.spans}
    assert marks == {
        "plain": (False, False, False),
        "bold": (True, False, False),
        "leaning": (False, True, False),
        "code": (False, False, True),
    }


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("CMR10", (False, False)),
        ("SFBX1000", (True, False)),
        ("SFRB1000", (True, False)),
        ("SFST1000", (False, True)),
        ("NimbusMonL-Regu", (False, True)),
        ("Times-Italic", (False, False)),
        ("Unnamed", (True, False)),
    ],
)
def test_the_name_of_a_font_says_more_than_its_weight(name, marks, monkeypatch):
    monkeypatch.setattr(pdfium_c, "FPDFFont_GetWeight", lambda _: 744)
    monkeypatch.setattr(pdfium_c, "FPDFFont_GetFlags", lambda _: 4)
    monkeypatch.setattr(pdfium_c, "FPDFFont_GetBaseFontName", lambda _, buffer, __: _filled(buffer, name))
    style = _style(None)
    assert (style.bold, style.mono) == marks


def _filled(buffer, name):
    buffer.value = name.encode()
    return len(name) + 1


def test_a_stroke_as_wide_as_long_is_a_bullet_and_not_a_rule(page):
    _, drawn = page(b"3.4 w 100 700 m 100 703.4 l S\n0.4 w 120 700 m 120 703.4 l S\n")
    assert drawn.fills == [pytest.approx((98.3, 96.6, 101.7, 100), abs=0.1)]
    assert not drawn.rules


def test_a_space_inside_a_text_object_parts_words_that_pdfium_joins(page):
    """As groff sets text: the end of a word and the start of the next one in one text object."""
    [line], _ = page(b"BT /F1 10 Tf 50 700 Td (t) Tj [(o) -320 (t)] TJ (he) Tj ET\n")
    assert line.text == "to the"


def test_words_have_their_places(page):
    [line], _ = page(shown("two words", 50, 700))
    first, second = line.spans
    assert first.left == pytest.approx(50, abs=1)
    assert first.right < second.left
    assert (line.top, line.bottom) == (pytest.approx(91, abs=1), pytest.approx(103, abs=1))
    assert line.size == 12


def test_a_raised_figure_is_marked(page):
    lines, _ = page(shown("word", 50, 700) + words("F1", "2", 77, 705, 7))
    shifts = {span.text: span.style.shift for line in lines for span in line.spans}
    assert shifts["word"] == 0
    assert shifts.get("2", 1) in {0, 1}
    path_text = "".join(line.text for line in lines)
    assert path_text.replace(" ", "") == "word2"


def test_links_are_laid_on_their_words(page):
    link = b"<</Type/Annot/Subtype/Link/Rect[48 695 100 715]/A<</S/URI/URI(https://example.org/x)>>>>"
    [line], _ = page(shown("linked and not", 50, 700), "/Annots[{0} 0 R]", (link,))
    assert [bool(span.style.link) for span in line.spans] == [True, True, False]


def test_links_that_run_scripts_are_left_out(page):
    link = b"<</Type/Annot/Subtype/Link/Rect[48 695 300 715]/A<</S/URI/URI(javascript:alert)>>>>"
    [line], _ = page(shown("linked", 50, 700), "/Annots[{0} 0 R]", (link,))
    assert line.spans[0].style.link == ""


def test_text_drawn_twice_is_read_once(page):
    lines, _ = page(shown("Shadow", 50, 700) + shown("Shadow", 50.6, 700.4))
    assert [line.text for line in lines] == ["Shadow"]


def test_repeated_words_elsewhere_on_the_page_are_kept(page):
    lines, _ = page(shown("Total", 50, 700) + shown("Total", 50, 650))
    assert [line.text for line in lines] == ["Total", "Total"]


def test_text_outside_of_the_page_is_left_out(page):
    lines, _ = page(shown("seen", 50, 700) + shown("cutting mark", 50, 850))
    assert [line.text for line in lines] == ["seen"]


def test_invisible_text_over_a_scan_is_read(page):
    lines, _ = page(b"3 Tr\n" + shown("recognised before", 50, 700))
    assert lines[0].text == "recognised before"


def test_turned_text_has_its_angle(page):
    up = b"q 0 1 -1 0 100 300 cm BT /F1 12 Tf (up the page) Tj ET Q\n"
    lines, _ = page(up + shown("across", 200, 700))
    assert {line.text: line.angle for line in lines} == {"up the page": 270, "across": 0}


def test_slanted_text_is_neither(page):
    [line], _ = page(b"q 0.7 0.7 -0.7 0.7 100 300 cm BT /F1 40 Tf (DRAFT) Tj ET Q\n")
    assert line.angle == -1


def test_strokes_and_thin_areas_are_rules(page):
    content = b"50 700 m 300 700 l S\n 50 600 250 0.5 re f\n 1 0 0 RG 400 100 m 400 300 l S\n"
    _, drawn = page(content)
    assert [tuple(round(value) for value in rule) for rule in drawn.rules] == [
        (50, 100, 300, 100),
        (50, 200, 300, 200),
        (400, 500, 400, 700),
    ]


def test_filled_areas_are_fills_and_frames_are_both(page):
    _, drawn = page(b"0.9 g 50 600 200 50 re f\n 50 400 200 50 re S\n")
    assert [tuple(round(value) for value in box) for box in drawn.fills] == [
        (50, 150, 250, 200),
        (50, 350, 250, 400),
    ]
    assert len(drawn.rules) == 4


def test_curves_and_slanting_lines_are_shapes_but_a_rounded_rectangle_is_a_fill(page):
    rounded = b"60 500 m 240 500 l 246 500 250 504 250 510 c 250 590 l 250 596 246 600 240 600 c 60 600 l "
    rounded += b"54 600 50 596 50 590 c 50 510 l 50 504 54 500 60 500 c f\n"
    _, drawn = page(rounded + b"300 300 m 350 380 l S 400 300 m 420 300 440 320 440 340 c f\n")
    assert [tuple(round(value) for value in box) for box in drawn.fills] == [(50, 200, 250, 300)]
    assert [round(box[0]) for box in drawn.shapes] == pytest.approx([300, 400], abs=1)


def test_a_picture_of_one_dot_drawn_long_is_a_rule_and_others_are_images(page):
    dot = b"BI /W 1 /H 1 /CS /G /BPC 8 ID \x00 EI Q\n"
    _, drawn = page(b"q 200 0 0 0.5 50 600 cm " + dot + b"q 90 0 0 80 50 400 cm " + dot)
    assert [(round(rule.left), round(rule.right)) for rule in drawn.rules] == [(50, 250)]
    assert [tuple(round(value) for value in box) for box in drawn.images] == [(50, 320, 140, 400)]


def test_rules_in_forms_are_read_and_endless_nesting_ends(page, tmp_path):
    form = b"<</Type/XObject/Subtype/Form/BBox[0 0 600 800]/Resources<</XObject<</Fm 5 0 R>>>>/Length 34>>"
    form += b"stream\n50 700 m 300 700 l S /Fm Do       \nendstream"
    content = b"q 1 0 0 1 0 -100 cm /Fm Do Q\n"
    path = tmp_path / "forms.pdf"
    pdf = pdf_bytes([Sheet(content, "0 0 600 800", "", (form,))])
    path.write_bytes(pdf.replace(b"/Font<</F1 3 0 R>>", b"/XObject<</Fm 5 0 R>>/Font<</F1 3 0 R>>"))
    with pdfium.open_document(path) as document, document.page(1) as opened:
        rules = drawings.read(opened).rules
    assert (round(rules[0].left), round(rules[0].top)) == (50, 200)
    assert len(rules) < 10


def test_ten_thousand_rules_are_read(page):
    content = b"".join(b"%d %d m %d %d l S\n" % (n % 500, n % 700, n % 500 + 50, n % 700) for n in range(10_000))
    _, drawn = page(content)
    assert 9_000 < len(drawn.rules) <= 10_000


@pytest.mark.parametrize("box", ["0 0 1 1", "0 0 14400 14400", "-300 -400 300 400"])
def test_pages_of_any_size_are_read(page, box):
    page(shown("text", 0, 0), box=box)


def test_a_page_of_a_hundred_thousand_characters_is_converted(tmp_path):
    lines = [f"line {n} with some words in it, and more of them to come" for n in range(1_900)]
    path = tmp_path / "long.pdf"
    path.write_bytes(pdf_bytes([Sheet(shown_lines(lines, 20, 19_000, 8, 10), "0 0 600 19100")]))
    with LocalConverter(Settings()).open(path) as reader:
        assert reader.convert(PageRef(path, 1)).text.count("more of them") == 1_900


def test_facts_of_all_pages_make_a_profile_that_pages_share(tmp_path):
    path = text_pdf(tmp_path / "a.pdf", [["Running head", "", *[f"text {n} of the page"] * 9] for n in range(4)])
    path.write_bytes(
        pdf_bytes([Sheet(shown("Running head", 72, 770) + shown(f"Text of page {n}.", 72, 600)) for n in range(4)])
    )
    converter, keeping = LocalConverter(Settings()), LocalConverter(Settings(documents={"keep_headers": True}))
    survey = converter.survey(path, [2], lambda: None)
    with converter.open(path, survey) as reader, keeping.open(path, survey) as other:
        answer = reader.convert(PageRef(path, 2))
        assert answer.text == "Text of page 1."
        assert other.convert(PageRef(path, 2)).text == "Running head\n\nText of page 1."
    assert answer.layout is not None
    [furniture, block] = answer.layout["blocks"]
    assert (furniture["type"], furniture["text"]) == ("furniture", "Running head")
    assert (block["type"], block["page"], answer.layout["unit"]) == ("paragraph", 2, "pt")
    assert block["bbox"][0] == pytest.approx(72, abs=1)


def test_a_hyphen_at_a_lines_end_differs_from_a_glyph_without_a_character():
    with pdfium.open_document(corpus_file("documents/copy-protected.pdf")) as document, document.page(2) as opened:
        lines = text_layer.read(opened).lines
    assert any("practical difficulties" in line.text for line in lines)
    assert any(line.text.endswith("dis\u00adtinct") or line.text.endswith("\u00ad") for line in lines)


def test_a_mark_drawn_over_a_letter_becomes_part_of_it(page):
    drawn = shown("Oguz and so on", 50, 700) + "BT /F1 12 Tf 62 702 Td (\u00b4) Tj ET\n".encode("cp1252")
    [line], _ = page(drawn)
    assert line.text == "Oǵuz and so on"


def test_a_mark_beside_letters_is_left_alone(page):
    [line], _ = page("BT /F1 12 Tf 50 700 Td (5 \u00b4 3) Tj ET\n".encode("cp1252"))
    assert line.text == "5 \u00b4 3"


def test_a_mark_of_a_name_on_a_real_page_is_on_its_letter():
    path = corpus_file("documents/multi-column-2p.pdf")
    with pdfium.open_document(path) as document, document.page(1) as opened:
        assert any("Barlas Oğuz" in line.text for line in text_layer.read(opened).lines)


def test_tables_of_real_pages_are_tables():
    path = corpus_file("documents/zerox-0004.pdf")
    with LocalConverter(Settings()).open(path) as reader:
        text = reader.convert(PageRef(path, 2)).text
    assert "| Model | ReAct | Focused ReAct | abs./rel. diff |" in text
    assert "| Llama 3.1 8B | 14.0% | 23.3% | +9.3 / 66% |" in text
    assert "| Phi-3.5 -mini 3.8B | 23.23±8.42s | 22.50±11.19s | -0.73 / 3% |" in text


def form(tmp_path, *fields):
    """Write a page with a label and form fields at x = 150: (y, dictionary entries) of each; return its path."""
    path = tmp_path / "form.pdf"
    widget = "<</Type/Annot/Subtype/Widget/T(f{})/F 4/DA(/F1 10 Tf)/Rect[150 {} 170 {}]{}>>"
    objects = [widget.format(n, y, y + 12, entries).encode() for n, (y, entries) in enumerate(fields)]
    mark = shown("4", 2, 2, 10)
    objects.append(
        b"<</Type/XObject/Subtype/Form/BBox[0 0 20 12]/Resources<</Font<</F1 3 0 R>>>>/Length %d>>" % len(mark)
    )
    objects[-1] += b"stream\n" + mark + b"\nendstream"
    kids = "".join(f"{{{n}}} 0 R " for n in range(len(fields)))
    content = shown("Label", 50, 702) + shown("Beside", 176, 702)
    pdf = pdf_bytes([Sheet(content, "0 0 600 800", f"/Annots[{kids}]", objects)])
    fields_of = " ".join(f"{number} 0 R" for number in range(5, 5 + len(fields)))
    path.write_bytes(pdf.replace(b"/Catalog", f"/Catalog/AcroForm<</Fields[{fields_of}]>>".encode()))
    return path


def texts_of(path):
    with pdfium.open_document(path) as document, document.page(1) as opened:
        return [line.text for line in text_layer.read(opened).lines]


def test_a_value_without_a_look_is_read(tmp_path):
    assert "Ada" in texts_of(form(tmp_path, (700, "/FT/Tx/V(Ada)")))


def test_check_boxes_are_marks_in_place_of_their_look(tmp_path):
    look = "/FT/Btn/AS{0}/V{0}/AP<</N<</Yes 6 0 R>>>>"
    assert texts_of(form(tmp_path, (700, look.format("/Yes")))) == ["Label", "Beside", "[x]"]
    assert texts_of(form(tmp_path, (700, look.format("/Off")))) == ["Label", "Beside", "[ ]"]


def test_a_check_box_between_the_words_of_a_line_is_one_of_them(tmp_path):
    path = form(tmp_path, (700, "/FT/Btn/AS/Off"))
    path.write_bytes(path.read_bytes().replace(b"(Beside)", b"( Yes  )").replace(b"176 702", b"086 702"))
    pdf = path.read_bytes().replace(b"/Rect[150", b"/Rect[082").replace(b" 170 712]", b" 088 712]")
    path.write_bytes(pdf)
    assert texts_of(path) == ["Label [ ] Yes"]


def test_rules_as_long_as_underscores_between_words_are_underscores(page):
    """TeX's older fonts have no underscore."""

    def written(content):
        lines, drawn = page(content)
        return [line.text for line in underscores.written(lines, drawn.dashes)]

    stroked = b"[]0 d 0.4 w 98.5 700.2 m 102.1 700.2 l S\n"
    between = b"68 700 3.6 0.4 re f\n" + stroked + b"103.4 700 3.6 0.4 re f\n"
    before = b"40.5 650 3.6 0.4 re f\n45.4 650 3.6 0.4 re f\n"
    assert written(shown("run", 50, 700) + between + shown("name", 72.3, 700) + shown("up", 108, 700)) == [
        "run_name__up"
    ]
    assert written(shown("low", 50, 650) + before) == ["__low"]
    underlined = b"50 698 3.6 0.4 re f\n74 640 3.6 0.4 re f\n"
    assert written(underlined + shown("a b", 50, 700) + shown("low note", 50, 650)) == ["a b", "low note"]


def test_too_many_words_near_dashes_have_no_underscores():
    line = Line("a", 0, 0, 2_000, 12, 12, spans=(Span("a", 0, 4),))
    dashes = [Rule(4.5 + n, 9, 8 + n, 9) for n in range(1_000)]
    assert underscores.written([line], dashes)[0].text == "a_"
    assert underscores.written([line] * 1_001, dashes) == [line] * 1_001


def test_signs_of_tex_that_pdfium_takes_for_figures_are_signs(page):
    [line], _ = page(
        words("V", "x", 50, 700)
        + words("S", "0", 57, 700)
        + shown("and", 70, 700)
        + words("S", "6", 95, 700)
        + shown("= 0", 96, 700)
    )
    assert line.text == "x′ and ≠ 0"
    [line], _ = page(words("S", "6|0", 50, 700))
    assert line.text == "|\u0338′"


def test_a_roots_sign_above_the_line_is_part_of_it(page):
    lines, _ = page(shown("of", 50, 700) + words("Y", "\\326", 64, 710) + shown("2 in text", 70.6, 700))
    assert {(round(line.top), round(line.bottom)) for line in lines} == {(91, 103)}
    assert to_markdown(lines) == "of √2 in text"


def test_a_bullet_in_a_font_of_pictures_is_a_bullet(page):
    glyph = b"<</Length 28>>stream\n500 0 0 0 500 500 d1 0 0 m f\nendstream"
    font = b"<</Type/Font/Subtype/Type3/FontBBox[0 0 500 500]/FontMatrix[.001 0 0 .001 0 0]/FirstChar 136/LastChar 136"
    font += b"/Widths[500]/CharProcs<</a136 5 0 R>>/Encoding<</Type/Encoding/Differences[136/a136]>>>>"
    [line], _ = page(words("P", "\\210", 50, 700) + shown("item", 60, 700), objects=(glyph, font))
    assert line.text == "• item"


def test_figures_in_old_style_are_figures(tmp_path):
    font = b"/O<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding<</Differences[65/oneoldstyle/nineoldstyle]>>>>"
    path = tmp_path / "old.pdf"
    path.write_bytes(styled(words("O", "AB", 50, 700)).replace(b"/Font<<", b"/Font<<" + font))
    assert texts_of(path) == ["19"]


def test_a_hidden_check_box_has_no_mark(tmp_path):
    assert texts_of(form(tmp_path, (700, "/FT/Btn/AS/Off/F 2"))) == ["Label", "Beside"]


def test_a_value_with_its_characters_in_boxes_is_a_word(tmp_path):
    assert texts_of(form(tmp_path, (700, "/FT/Tx/Ff 16777216/MaxLen 4/V(1978)")))[-1] == "1978"


def test_vertical_columns_run_down_and_the_right_one_comes_first(tmp_path):
    """The font has no glyphs here, and PDFium reports no column that does not end with a full stop."""

    def drawn(text, x):
        return f"BT /V 12 Tf {x} 700 Td <{text.encode('utf-16-be').hex()}> Tj ET\n".encode()

    base = "<</Type/Font/Subtype/CIDFontType0/BaseFont/HeiseiMin-W3/CIDSystemInfo<</Registry(Adobe)/Ordering(Japan1)"
    font = f"/V<</Type/Font/Subtype/Type0/BaseFont/HeiseiMin-W3/Encoding/UniJIS-UCS2-V/DescendantFonts[{base}"
    columns = drawn("何も無い。", 380) + drawn("名前はまだ無い。", 400)
    pdf = pdf_bytes([Sheet(columns, "0 0 600 800", "", ())])
    pdf = pdf.replace(b"/Font<</F1 3 0 R>>", f"/Font<</F1 3 0 R {font}/Supplement 2>>>>]>>>>".encode())
    path = tmp_path / "v.pdf"
    path.write_bytes(pdf)
    with pdfium.open_document(path) as document, document.page(1) as opened:
        lines = text_layer.read(opened).lines
        width, height = opened.size
    assert {line.angle for line in lines} == {90}
    assert all(line.bottom - line.top > 4 * line.size for line in lines)
    assert render(convert(PageContent(width, height, tuple(lines)))) == "名前はまだ無い。何も無い。"


def test_text_of_a_negative_size_is_upright_if_it_is_turned(page):
    [line], _ = page(b"BT /F1 -12 Tf -1 0 0 -1 50 700 Tm (twice turned) Tj ET\n")
    assert (line.text, line.size, line.angle) == ("twice turned", 12, 0)


def test_check_boxes_are_items_and_a_tick_over_one_is_in_it(page):
    boxes = [("o", "Peakload"), ("x", "Intermittent"), ("q", "Seasonal")]
    rows = [
        words("W", box, 50, 700 - 30 * n) + words("F1", text, 65, 700 - 30 * n) for n, (box, text) in enumerate(boxes)
    ]
    tick, answers = words("Z", "4", 51, 641, 10), words("W", "q", 50, 580) + words("F1", "Yes", 65, 580)
    answers += words("W", "x", 95, 580) + words("F1", "No", 110, 580)
    lines, _ = page(b"".join([*rows, tick, answers]))
    text = render(convert(PageContent(600, 800, tuple(lines))))
    assert text == "- [ ] Peakload\n- [x] Intermittent\n- [x] Seasonal\n\n□ Yes ☒ No"


def test_words_for_screen_readers_alone_are_left_out(page):
    """Forms repeat "Required field" in white and too small to see. White headings on a dark ground stay."""
    hidden = b"1 1 1 rg\n" + words("F1", "Required field", 100, 700, 0.96) + words("F1", "Heading", 50, 650)
    lines, _ = page(shown("Job title *", 50, 700) + hidden + b"0 g\n" + words("F1", "tiny", 50, 600, 0.96))
    assert [line.text for line in lines] == ["Job title *", "Heading", "tiny"]


@pytest.fixture
def loads(monkeypatch):
    """Return the numbers of the pages that PDFium loads from now on."""
    numbers = []
    page = pdfium.Document.page

    def counted(document, number):
        numbers.append(number)
        return page(document, number)

    monkeypatch.setattr(pdfium.Document, "page", counted)
    return numbers


def converted(path, survey):
    with conversion.open_source(path, WITH_PICTURES, survey) as source:
        return [source.convert(number).text for number in (1, 2)]


def test_the_process_that_surveyed_a_document_loads_its_pages_once(tmp_path, loads):
    path = text_pdf(tmp_path / "a.pdf", [["one"], ["two"]])
    survey = conversion.survey(path, [1, 2], WITH_PICTURES, lambda: None)
    first = converted(path, survey)
    assert loads == [1, 2]
    assert converted(path, survey) == first
    assert loads == [1, 2, 1, 2]


def test_a_file_that_changed_after_its_survey_is_read_again(tmp_path, loads):
    path = text_pdf(tmp_path / "a.pdf", [["one"], ["two"]])
    survey = conversion.survey(path, [1, 2], WITH_PICTURES, lambda: None)
    text_pdf(path, [["another"], ["text"]])
    assert converted(path, survey) == ["another", "text"]
    assert loads == [1, 2, 1, 2]


@pytest.mark.parametrize("name", ["DA-619p.pdf", "layout-parser-paper-fast.pdf", "multi-column-2p.pdf"])
def test_lines_in_one_style_are_the_same_read_word_by_word(name, monkeypatch):
    def lines():
        with pdfium.open_document(corpus_file(f"documents/{name}")) as document, document.page(2) as opened:
            return text_layer.read(opened).lines

    quickly = lines()
    monkeypatch.setattr(Glyphs, "_level_words", lambda *_: None)
    assert lines() == quickly
    assert quickly


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("issue5010.pdf", "인터뷰●홍인혜카피라이터", id="a-font-named-with-@"),
        pytest.param("issue7426.pdf", "\U00011c00 \U00011c10 \U00011c20", id="beyond-the-basic-plane"),
    ],
)
def test_a_text_layer_of_any_script_and_font_is_kept(name, text):
    path = field_file(name)
    with conversion.open_source(path, Options(), conversion.survey(path, [1], Options(), lambda: None)) as pages:
        page = pages.convert(1)
    assert page.text.startswith(text)
    assert "confidence" not in page.layout, "the text layer has all of the text"
