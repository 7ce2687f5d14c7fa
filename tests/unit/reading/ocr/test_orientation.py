"""Turned and leaning pages: their direction, the places on the page, and the number of readings."""

import pytest
from PIL import Image

from pipeline.providers.local import LocalConverter
from pipeline.providers.protocols import PageRef
from pipeline.reading.layout import rotation
from pipeline.reading.layout.model import Rule
from pipeline.reading.layout.page import Line, PageContent
from pipeline.reading.ocr import orientation, recognition
from pipeline.reading.ocr.direction import Piece, RecognisedText, confidence, read_all, turned
from pipeline.reading.ocr.engine import Text
from pipeline.reading.pdf import pdfium
from pipeline.settings import Settings
from tests.support.corpus import corpus_file
from tests.support.samples import picture_of

TURNS = [0, 90, 180, 270]
LETTER = [
    "Dear colleagues of the workshop,",
    "the meeting is moved to Thursday,",
    "please bring the drawings of the pump",
    "and the list of spare parts.",
    "",
    "Yours sincerely, Ada Lovelace",
]


def quad(left, top, right, bottom):
    return ((left, top), (right, top), (right, bottom), (left, bottom))


def column(count, width=300.0, height=20.0):
    return [quad(0, 40.0 * n, width, 40.0 * n + height) for n in range(count)]


def clockwise(corners, degrees, side=1000.0):
    """Return the places on a turned page of this size, from its new top left corner."""
    moves = {0: lambda x, y: (x, y), 90: lambda x, y: (side - y, x), 180: lambda x, y: (side - x, side - y)}
    moves[270] = lambda x, y: (y, side - x)
    top_left, top_right, bottom_right, bottom_left = (moves[degrees](x, y) for x, y in corners)
    return turned((top_left, top_right, bottom_right, bottom_left), (360 - degrees) % 360)


class Reader:
    """Recognises pieces in their own direction with certainty; counts its readings."""

    def __init__(self, pieces, sure=0.98, unsure=0.6, wrong="xu"):
        self.texts = {corners: text for text, corners in pieces}
        self.sure, self.unsure, self.wrong = sure, unsure, wrong
        self.count = 0

    def __call__(self, quads):
        self.count += len(quads)
        return [Text(self.texts[q], self.sure) if q in self.texts else Text(self.wrong, self.unsure) for q in quads]


def page(turn, count=20):
    """Return (the found places, text with its corners from its own top left) of a turned page."""
    quads = [clockwise(corners, turn) for corners in column(count)]
    return quads, [(f"line {n} of it", turned(corners, turn)) for n, corners in enumerate(quads)]


@pytest.mark.parametrize("turn", TURNS)
def test_lines_are_read_the_way_the_page_was_put_in(turn):
    quads, texts = page(turn)
    reader = Reader(texts)
    assert read_all(quads, reader) == [RecognisedText(*text) for text in texts]
    assert reader.count <= len(quads) + 6


def test_an_upright_page_costs_nothing_more():
    quads, texts = page(0)
    reader = Reader(texts)
    read_all(quads, reader)
    assert reader.count == len(quads)


def test_smudged_text_stays_upright():
    quads, texts = page(0)
    assert [piece.text for piece in read_all(quads, Reader(texts, sure=0.8, unsure=0.78))] == [t for t, _ in texts]


def test_text_that_is_illegible_in_all_directions_is_left_upright():
    quads = [clockwise(corners, 90) for corners in column(12)]  # writing from top to bottom
    assert read_all(quads, Reader([], unsure=0.4)) == []
    assert read_all([], Reader([])) == []


def test_confidence_is_that_of_all_that_looks_like_text():
    line, icon = (
        ((0.0, 0.0), (300.0, 0.0), (300.0, 20.0), (0.0, 20.0)),
        ((0.0, 0.0), (20.0, 0.0), (20.0, 20.0), (0.0, 20.0)),
    )
    assert confidence([]) is None
    assert confidence([Piece("read well", line, 0.9), Piece("", icon, 0.9), Piece("?", icon, 0.1)]) == 0.9
    assert confidence([Piece("read well", line, 0.9), Piece("  ", line, 0.9)]) == pytest.approx(0.45)
    assert confidence([Piece("guessed", line, 0.1), Piece("a", icon, 0.9)]) == pytest.approx((30 + 18) / 320)


def test_digits_are_compared_both_ways():
    quads, texts = page(180)
    numbers = [("6890", corners) for _, corners in texts]
    sure_of_both = Reader(numbers, sure=0.99, unsure=0.92, wrong="0689")
    assert {piece.text for piece in read_all(quads, sure_of_both)} == {"6890"}


@pytest.mark.parametrize("own", [90, 270])
@pytest.mark.parametrize("turn", TURNS)
def test_text_up_the_margin_is_read_on_turned_pages_too(turn, own):
    quads, texts = page(turn)
    margin = clockwise(quad(900.0, 100.0, 920.0, 700.0), turn)
    texts = [*texts, ("in the margin", turned(margin, (turn + own) % 360))]
    lines = orientation.as_lines(read_all([*quads, margin], Reader(texts)), (500.0, 500.0))
    level, angle = orientation.upright(PageContent(1000, 1000, tuple(lines)))
    assert angle == turn
    assert {line.text: line.angle for line in level.lines}["in the margin"] == own
    assert [line.angle for line in level.lines].count(0) == len(texts) - 1


@pytest.mark.parametrize("turn", TURNS)
def test_the_page_is_turned_with_all_that_is_on_it(turn):
    content = PageContent(600, 800, (Line("a title", 100, 50, 300, 70, 15), Line("x", 10, 700, 20, 710, 8)))
    ruled = PageContent(600, 800, content.lines, (Rule(0, 10, 600, 10),), ((0, 0, 50, 60),), ((5, 6, 70, 80),))
    wrong = rotation.upright(ruled, (360 - turn) % 360)
    lines = tuple(line._replace(angle=turn) for line in wrong.lines)
    level, angle = orientation.upright(
        PageContent(wrong.width, wrong.height, lines, wrong.rules, wrong.fills, wrong.pictures)
    )
    assert (level, angle) == (ruled, turn)


@pytest.mark.parametrize("lean", [-5, -2, -0.5, 0, 1, 3.5, 5])
@pytest.mark.parametrize("turn", TURNS)
def test_the_skew_of_a_page_is_measured_and_corrected(lean, turn):
    _, texts = page(turn)
    leaning = [RecognisedText(text, orientation.rotated(corners, lean, (500.0, 500.0))) for text, corners in texts]
    assert orientation.skew([piece.corners for piece in leaning]) == pytest.approx(lean)
    lines = orientation.as_lines(leaning, (500.0, 500.0))
    expected = [orientation.as_line(RecognisedText(*text)) for text in texts]
    assert [line.box for line in lines] == [pytest.approx(line.box) for line in expected]


def test_text_at_all_angles_is_no_leaning_page():
    corners = [orientation.rotated(quad(0, 0, 300, 20), degrees, (0.0, 0.0)) for degrees in (-7, -3, 0.5, 4, 6, 7.5)]
    assert orientation.skew(corners) == 0
    assert orientation.skew([orientation.rotated(quad(0, 0, 300, 20), 30, (0.0, 0.0))] * 9) == 0
    assert orientation.skew([quad(0, 0, 20, 20)]) == 0


def test_leaning_text_keeps_its_height():
    line = orientation.as_line(RecognisedText("leaning", ((0, 0), (400, 40), (400, 70), (0, 30))))
    assert (line.top, line.bottom, line.angle) == (20, 50, 0)
    assert line.size == pytest.approx(22.5)


def test_text_up_the_page_keeps_its_width_as_size():
    line = orientation.as_line(RecognisedText("upwards", ((0, 200), (0, 0), (20, 0), (20, 200))))
    assert (line.top, line.bottom, line.size, line.angle) == (0, 200, 15, 270)


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, 90, *(pytest.param(turn, marks=pytest.mark.rotating) for turn in (180, 270))])
def test_a_letter_put_in_the_wrong_way_is_read(tmp_path, turn):
    picture_of(LETTER).rotate(-turn, expand=True).save(tmp_path / "a.png")
    with LocalConverter(Settings()).open(tmp_path / "a.png") as reader:
        text = reader.convert(PageRef(tmp_path / "a.png", 1)).text
    assert " ".join(text.split()) == " ".join(" ".join(LETTER).split())


@pytest.mark.slow
@pytest.mark.parametrize("turn", [pytest.param(90, marks=pytest.mark.rotating), 270])
def test_blocks_have_their_places_on_the_scanned_page(tmp_path, turn):
    boxes = []
    for name, degrees in (("upright.png", 0), ("turned.png", turn)):
        picture_of(LETTER[:4]).rotate(-degrees, expand=True).save(tmp_path / name)
        with LocalConverter(Settings()).open(tmp_path / name) as reader:
            layout = reader.convert(PageRef(tmp_path / name, 1)).layout
            assert layout is not None
            boxes.append(layout["blocks"][0]["bbox"])
    assert boxes[1] == pytest.approx(rotation.turn_box(boxes[0], 360 - turn, 900, 500), abs=8)


@pytest.mark.slow
@pytest.mark.parametrize("lean", [-5, *(pytest.param(lean, marks=pytest.mark.rotating) for lean in (2, 5))])
def test_a_leaning_letter_is_read_line_by_line(lean):
    picture = picture_of(LETTER, (1200, 700)).rotate(-lean, fillcolor="white", resample=Image.Resampling.BICUBIC)
    lines = recognition.recognise(picture, threads=1)
    assert [line.text for line in sorted(lines, key=lambda line: line.top)] == [text for text in LETTER if text]
    assert max(line.bottom - line.top for line in lines) < 80


@pytest.mark.rotating
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "turn"), [("loremipsum-flat.pdf", 180), ("MEDRPT-2024-PAT-3847_medical_report_scan.pdf", 90)]
)
def test_scans_say_the_same_whichever_way_they_are_put_in(name, turn):
    with pdfium.open_document(corpus_file(f"documents/{name}")) as document, document.page(1) as opened:
        picture = opened.render(150, recognition.pixels_at(150))
    picture = picture.crop((0, picture.height // 2, picture.width, picture.height))
    words = {}
    for angle in (0, turn):
        lines = recognition.recognise(picture.rotate(-angle, expand=True), threads=1)
        words[angle] = {word for line in lines for word in line.text.split()}
        assert {line.angle for line in lines} <= {angle, -1}
    assert len(words[turn] & words[0]) >= 0.9 * len(words[0])
