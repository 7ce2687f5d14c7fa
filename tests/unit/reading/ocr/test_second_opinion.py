"""Tesseract's opinion on pages of uncertain recognition: when conversion asks for it, and which part it accepts."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from PIL import Image, ImageDraw, ImageFont

from pipeline.reading.layout.page import Line
from pipeline.reading.ocr import second_opinion, tesseract_words
from pipeline.reading.ocr.recognition import Reading
from pipeline.reading.ocr.second_opinion import Tesseract
from pipeline.reading.sandbox.limits import page_limits
from tests.support.waiting import wait_until

_LIMITS = page_limits(20, 1_000)
_PICTURE = Image.new("RGB", (400, 100), "white")
_HEAD = "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext"


def _row(text: str, left: int, sure: float = 95.5, line: int = 1, *, level: int = 5, top: int = 10) -> str:
    return f"{level}\t1\t1\t1\t{line}\t1\t{left}\t{top}\t80\t20\t{sure}\t{text}"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program called tesseract, first on the PATH, that records its arguments and environment."""
    program = tmp_path / "bin" / "tesseract"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--version) echo "tesseract 9.9";;\n'
        '--list-langs) printf "List:\\neng\\nosd\\nrus\\n";;\n'
        '*) echo "$@" >> calls; env > environment; ulimit -v > memory\n'
        'case "$*" in *"--psm 0"*) echo "Script: Cyrillic" > page.osd;; *) echo words > page.tsv;; esac;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PENSTOCK_SECRET", "1")
    second_opinion.installed.cache_clear()
    yield program
    second_opinion.installed.cache_clear()


def test_the_program_is_run_with_the_packs_of_the_page_s_script_and_without_our_environment(
    fake: Path, tmp_path: Path
) -> None:
    assert second_opinion.installed() == Tesseract(str(fake), "tesseract 9.9", ("eng", "osd", "rus"))
    assert second_opinion.read(tmp_path, _LIMITS, lambda: True)

    assert (tmp_path / "calls").read_text().splitlines() == [
        "page.pgm page -l osd --psm 0",
        "doubtful.pgm page -l rus+eng --psm 3 tsv",
    ]
    assert "PENSTOCK_SECRET" not in (tmp_path / "environment").read_text()


def test_a_script_that_recognition_knows_is_not_looked_for(fake: Path, tmp_path: Path) -> None:
    assert fake.exists()
    lines = [Line("mostly clear words", 10, 10, 180, 30, 15, sure=(0.9, 0.8, 0.5))]
    for confidence, script in ((0.7, False), (0.9, True)):
        tesseract_words.improved(Reading(lines, confidence), _PICTURE, tmp_path)
        assert (tmp_path / second_opinion.SCRIPT).exists() == script
    assert second_opinion.read(tmp_path, _LIMITS, lambda: True)
    assert (tmp_path / "calls").read_text().splitlines() == ["doubtful.pgm page -l eng --psm 3 tsv"]


def test_a_program_past_its_time_limit_or_no_longer_wanted_is_killed(fake: Path, tmp_path: Path) -> None:
    assert second_opinion.installed()
    fake.write_text("#!/bin/sh\nexec sleep 600\n")

    assert not second_opinion.read(tmp_path, page_limits(0.3, 1_000), lambda: True)
    assert not second_opinion.read(tmp_path, _LIMITS, lambda: False)


def test_the_programs_own_children_are_killed_with_it(fake: Path, tmp_path: Path) -> None:
    """Make `tesseract` a script that starts the program, like the wrapper of a package or a container."""
    assert second_opinion.installed()
    fake.write_text("#!/bin/sh\nsleep 600 &\necho $! > started\nwait\n")
    started = tmp_path / "started"

    assert not second_opinion.read(tmp_path, _LIMITS, lambda: not (started.exists() and started.read_text()))
    wait_until(lambda: _has_ended(int(started.read_text())), 60, "the script's own child has ended")


def _has_ended(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_a_program_that_prints_without_bounds_is_not_used(fake: Path) -> None:
    fake.write_text("#!/bin/sh\nexec head -c 100000000 /dev/zero\n")

    assert second_opinion.installed() is None


def test_a_machine_without_the_program_has_no_second_opinion(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert second_opinion.installed() is None
    assert not second_opinion.read(tmp_path, _LIMITS, lambda: True)
    assert fake.exists()


@pytest.mark.parametrize(
    ("packs", "script", "chosen"),
    [
        (("ara", "eng", "osd"), "Arabic", ["ara", "eng"]),
        (("eng", "osd", "rus"), "Korean", []),  # without the language's pack its words would not help
        (("deu", "eng"), "", ["deu", "eng"]),
        (("ara",), "Arabic", ["ara"]),
    ],
)
def test_packs_are_chosen_by_the_script(packs: tuple[str, ...], script: str, chosen: list[str]) -> None:
    assert second_opinion._languages(Tesseract("", "", packs), script) == chosen


def test_words_become_lines_and_invalid_rows_are_left_out() -> None:
    rows = [
        _HEAD,
        _row("", 0, -1, level=4),
        _row("Привет,", 10),
        _row("мир", 100, 80),
        _row("x", 390),
        _row("nan", 0, float("nan")),
        _row("low", 10, -1),
        _row("9" * 300, 10),
        "5\t1",
        _row("next\x1b", 10, 90, 2, top=50),
        _row("a", 10, 1e9, 3),
    ]
    first, second = tesseract_words.parse("\n".join(rows), 400, 100)

    assert (first.text, first.box, first.sure) == ("Привет, мир", (10, 10, 180, 30), (0.955, 0.8))
    assert second.text == "next"


def test_lines_given_as_displayed_are_read_leftwards_on_a_page_of_such_text() -> None:
    displayed = [("Windows", 100), ("11", 180), ("افتح", 240), (".1", 300)]
    in_order = [("برنامج", 300), ("Windows", 200), ("11", 280), ("متاح", 140), ("للجميع", 40)]
    rows = [_row(text, left, line=1) for text, left in displayed] + [
        _row(text, left, line=2) for text, left in in_order
    ]

    lines = tesseract_words.parse("\n".join(rows), 400, 100)

    assert [line.text for line in lines] == ["1. افتح Windows 11", "برنامج Windows 11 متاح للجميع"]


def test_cells_of_a_row_read_leftwards_are_lines_of_their_own() -> None:
    rows = [_row(text, left) for text, left in [("מסך", 800), ("שחור", 700), ("12", 400), ("$50", 100)]]

    assert [line.text for line in tesseract_words.parse("\n".join(rows), 900, 100)] == ["מסך שחור", "12", "$50"]


def test_an_uncertain_reading_requests_a_second_opinion_and_takes_the_better_one(tmp_path: Path) -> None:
    unsure = Reading([Line(", .", 10, 10, 180, 30, 15, sure=(0.5, 0.5))], 0.5)

    assert tesseract_words.improved(unsure, _PICTURE, tmp_path) == unsure
    with Image.open(tmp_path / second_opinion.DOUBTFUL_LINES) as written:
        assert (written.size, written.mode) == ((400, 100), "L")
    (tmp_path / second_opinion.WORDS).write_text("\n".join([_HEAD, _row("Привет,", 10), _row("мир", 100)]))
    better = tesseract_words.improved(unsure, _PICTURE, tmp_path)

    assert [line.text for line in better.lines] == ["Привет, мир"]
    assert better.engines == ("rapidocr", "tesseract")
    assert better.confidence == pytest.approx(0.955)


@pytest.mark.parametrize("lean", [0.0, 4.0])
def test_only_lines_in_doubt_are_given_to_tesseract(tmp_path: Path, lean: float) -> None:
    """Of twelve rows of strokes, two stay, and another of which recognition knows nothing."""
    picture = Image.new("L", (600, 900), 230)
    draw, lines = ImageDraw.Draw(picture), []
    for number in range(13):
        for left in range(100, 500, 10):
            draw.rectangle((left, 60 * number + 80, left + 3, 60 * number + 100), fill=20)
        sure = {4: (0.99, 0.5), 5: (0.7, 0.9)}.get(number, (0.99, 0.95))
        lines.append(Line("two words", 100, 60 * number + 78, 500, 60 * number + 102, 18, sure=sure))
    picture = picture.rotate(-lean, Image.Resampling.BILINEAR, fillcolor=230)
    tesseract_words.improved(Reading(lines[:12], 0.9, lean), picture.convert("RGB"), tmp_path)

    with Image.open(tmp_path / second_opinion.DOUBTFUL_LINES) as written:
        rows = written.rotate(lean, fillcolor=230).crop((120, 0, 480, 900)).resize((1, 900), Image.Resampling.BOX)
    dark = "".join(".#"[value < 210] for value in rows.tobytes())
    assert len(dark.replace(".", " ").split()) == 3
    assert all(dark[60 * number + 90] == "#" for number in (4, 5, 12))


def test_a_certain_reading_requests_no_second_opinion(tmp_path: Path) -> None:
    sure = Reading([Line("clear", 10, 10, 180, 30, 15, sure=(0.99,))], 0.99)

    assert tesseract_words.improved(sure, _PICTURE, tmp_path) is sure
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")
def test_the_installed_program_reads_a_picture(tmp_path: Path) -> None:
    second_opinion.installed.cache_clear()
    picture = Image.new("RGB", (700, 120), "white")
    ImageDraw.Draw(picture).text((20, 30), "Second opinion", font=ImageFont.load_default(48), fill="black")
    picture.convert("L").save(tmp_path / second_opinion.DOUBTFUL_LINES, "PPM")

    assert second_opinion.read(tmp_path, _LIMITS, lambda: True)
    (line,) = tesseract_words.parse((tmp_path / second_opinion.WORDS).read_text(), 700, 120)
    assert line.text == "Second opinion"


def test_lines_of_an_unknown_script_stay_in_the_picture_though_recognition_is_sure(tmp_path: Path) -> None:
    picture = Image.new("RGB", (400, 100), "white")
    picture.paste("black", (40, 20, 300, 40))
    numbers = Reading([Line("(3.2 )", 30, 10, 310, 50, 20, sure=(0.99, 0.99)), Line("x", 9, 60, 20, 80, 9)], 0.3)

    tesseract_words.improved(numbers, picture, tmp_path)

    assert Image.open(tmp_path / second_opinion.DOUBTFUL_LINES).getpixel((100, 30)) == 0
