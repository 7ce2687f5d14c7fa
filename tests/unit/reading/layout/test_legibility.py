"""Illegible words: overprinted, guessed, or of characters that do not belong together."""

from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from pipeline.flows.documents.rules.doubt import is_garbled
from pipeline.providers.local import LocalConverter
from pipeline.providers.protocols import Answer, PageRef
from pipeline.reading.layout.legibility import illegible
from pipeline.reading.layout.page import Line, PageContent, convert
from pipeline.settings import Settings
from tests.support.corpus import corpus_file
from tests.support.samples import Sheet, pdf_bytes, shown, shown_lines

UNSURE, GUESSED = 0.55, 0.3
LABELS = [
    "Patient Name:",
    "Date of Birth:",
    "Insurance Provider:",
    "Policy Number:",
    "Primary Physician:",
    "Blood Type:",
]
VALUES = [
    "Jonathan M. Harrison",
    "March 15, 1978",
    "BlueCross BlueShield",
    "BCB-445782",
    "Dr. Elizabeth Warren",
    "A Positive",
]
CLEAN = {
    "English": "The committee's treasurer, Mrs. Thompson-O'Reilly, will prepare it (see 3.2) by 14 March 2025.",
    "German": "Rechtsschutzversicherungsgesellschaften müssen zwölf Angstschweißproben rückwirkend anpassen.",
    "French": "L'assemblée générale s'est réunie à l'hôtel de ville ; les œuvres ont été appréciées aujourd'hui.",
    "Chinese": "委员会于星期一召开会议讨论市图书馆的年度预算，访客人数2024年几乎没有变化。",
    "figures": "SKU-8847 $13,005.00 2024-10-15 97.8-99.1°F 150,000-400,000/μL PAT-3847-2024 +14 22 045 4952",
    "code": "query.filter(os.environ.items()) for(int i=0;i<n;++i){ uint32_t *ptr = 0xFF3A; parseDocument(baseUrl); }",
    "addresses": "https://1ayout-parser.github.io www.qaconsultants.com-Email contact@qaconsultants.com",
}


def illegible_words(text: str, sure: float) -> list[str]:
    """Return the illegible words of a recognised line. `sure`: the certainty of each word."""
    line = Line(text, 50, 100, 50 + 7 * len(text), 114, 10.0, sure=(sure,) * len(text.split()))
    content = PageContent(2000, 600, (line,))
    return illegible(convert(content), content.lines)


def converted(path: Path, page: int = 1) -> Answer:
    with LocalConverter(Settings()).open(path) as reader:
        return reader.convert(PageRef(path, page))


def is_doubted(answer: Answer) -> bool:
    assert answer.layout is not None
    return is_garbled(answer.layout.get("garbled", ()))


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN.keys())
def test_clean_text_makes_sense_also_where_recognition_is_unsure_of_it(text: str) -> None:
    assert illegible_words(text, UNSURE) == []


@pytest.mark.parametrize(
    "word",
    [
        "PieB0Shietd",
        "MarEhizabet9Warren,",
        "PAtnefNRirtber:",
        "BiBhaRSrdriguez",
        "BBha45R@driguez",
        "Nummber::",
        "rgyβey",
    ],
)
def test_characters_that_do_not_go_together_make_no_sense_where_recognition_is_unsure(word: str) -> None:
    assert illegible_words(word, UNSURE) == [word]
    assert illegible_words(word, 0.9) == [], "a code or a name counts as illegible"


def test_a_guessed_word_of_any_shape_is_illegible() -> None:
    assert illegible_words("Blandysaciater: is the label", GUESSED) == ["Blandysaciater:", "label"]
    assert illegible_words("委员会于星期一召开会议讨论市图书馆的年度预算", GUESSED) == [], (
        "one of many characters is always unsure"
    )


def test_values_of_a_form_that_are_drawn_over_one_another_are_doubted(tmp_path: Path) -> None:
    once = shown_lines(LABELS, pitch=30) + shown_lines(VALUES, 250, pitch=30)
    twice = once + shown_lines(VALUES[2:4], 252, 722, pitch=30)
    (tmp_path / "form.pdf").write_bytes(pdf_bytes([Sheet(once), Sheet(twice)]))

    assert not is_doubted(converted(tmp_path / "form.pdf", 1))
    assert is_doubted(converted(tmp_path / "form.pdf", 2))


def test_bold_by_drawing_twice_and_a_word_across_the_page_raise_no_doubt(tmp_path: Path) -> None:
    lines = ["A heading that is drawn twice to look bold", "and a line of text below it, which is drawn once."] * 4
    bold = shown_lines(lines) + b"".join(shown(line, 72.4, 720 - 14 * row) for row, line in enumerate(lines))
    (tmp_path / "bold.pdf").write_bytes(pdf_bytes([Sheet(bold + shown("SAMPLE", 100, 660, 80))]))

    assert not is_doubted(converted(tmp_path / "bold.pdf"))


@pytest.mark.slow
def test_a_scanned_form_with_fields_printed_over_one_another_is_doubted(tmp_path: Path) -> None:
    font = ImageFont.load_default(22)
    for name, overprinted in (("clean", 0), ("overprinted", 3)):
        image = Image.new("RGB", (1100, 500), "white")
        draw = ImageDraw.Draw(image)
        for row, (label, value) in enumerate(zip(LABELS, VALUES, strict=True)):
            draw.text((80, 40 + 60 * row), label, fill="black", font=font)
            draw.text((420, 40 + 60 * row), value, fill="black", font=font)
            if row < overprinted:
                draw.text((82, 44 + 60 * row), LABELS[row + 3], fill="black", font=font)
                draw.text((424, 44 + 60 * row), VALUES[row + 3], fill="black", font=font)
        image.save(tmp_path / f"{name}.png")

    assert not is_doubted(converted(tmp_path / "clean.png"))
    assert is_doubted(converted(tmp_path / "overprinted.png"))


@pytest.mark.rotating
@pytest.mark.slow
def test_a_real_form_is_doubted_for_two_fields_and_its_clean_pages_are_not() -> None:
    path = corpus_file("documents/MEDRPT-2024-PAT-3847_medical_report_scan.pdf")
    form = converted(path, 1)
    assert form.layout is not None
    assert form.layout["confidence"] > 0.97, "recognition is uncertain of the page as a whole"
    assert any(word.startswith("Bl") for word in form.layout["garbled"]), (
        "Blood Type and Primary Physician, overprinted"
    )
    assert is_doubted(form)
    assert not is_doubted(converted(path, 3))
