"""Sequences of screens with one change, as files: changed text is never a duplicate, other small changes are."""

import random
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from PIL import Image, ImageDraw

from pipeline.flows.screenshots.rules.duplicates import Seen, differs, distance, judge
from pipeline.flows.screenshots.states import Verdict
from pipeline.reading.ocr.fingerprint import Fingerprint, Sketches, read_frame
from pipeline.settings import ScreenshotSettings
from tests.support.corpus import corpus_file
from tests.support.frames import TYPED, Desktop, draw, encoded, font
from tests.unit.screenshots.factories import NOW

RULES = ScreenshotSettings()
FORMS = [("PNG", "PNG"), ("JPEG", "JPEG"), ("PNG", "JPEG")]
SCREENS = [
    Desktop(lines=12),
    Desktop(lines=26, dark=True, seed=1),
    Desktop(lines=34, seed=2),
    Desktop(seed=3, size=(1366, 768), lines=15),
    Desktop(seed=4, size=(2560, 1440)),
    Desktop(seed=5, size=(3840, 2160), dark=True),
]
SAME: dict[str, dict[str, Any]] = {
    "the clock": {"clock": "09:42"},
    "the cursor": {"cursor": (1200, 600)},
    "cursor on text": {"cursor": (420, 300)},
}
CHANGED: dict[str, dict[str, Any]] = {
    "a typed line": {"typed": TYPED},
    "a typed word": {"typed": "Done."},
    "scrolled by a line": {"scrolled": 1},
    "a dialog": {"dialog": "Save changes?"},
    "another window": {"seed": 99, "title": "mail"},
}
CORPUS = ("excel", "google_page", "onenote", "windows_multitab", "word")


def first_of(values: Iterable[Any], count: int, ids: Callable[[Any], str] = str) -> list[ParameterSet]:
    """Return parameters of which the first `count` always run; the others rotate."""
    marks = pytest.mark.rotating
    return [pytest.param(value, id=ids(value), marks=marks if n >= count else ()) for n, value in enumerate(values)]


EACH_SCREEN = first_of(SCREENS, 2, lambda screen: f"{screen.size[1]}-{screen.seed}")


def seen(image: Image.Image, form: str) -> Fingerprint:
    return read_frame(encoded(image, form, **{"PNG": {"compress_level": 1}, "JPEG": {"quality": 80}}[form]))


def in_forms(image: Image.Image) -> dict[str, Fingerprint]:
    return {form: seen(image, form) for form in ("PNG", "JPEG")}


def verdict(first: Fingerprint, second: Fingerprint, threshold: int) -> Verdict:
    frame = Seen(1, first.phash, NOW)
    return judge(second.phash, [frame], threshold, lambda _: not differs(first.sketch, second.sketch)).verdict


@pytest.mark.parametrize("screen", EACH_SCREEN)
def test_changed_text_is_never_a_duplicate_however_wide_the_threshold(screen: Desktop) -> None:
    before = in_forms(draw(screen))
    for name, change in CHANGED.items():
        after = in_forms(draw(screen.but(**change)))
        for first, second in FORMS:
            for threshold in (RULES.dedup_threshold, RULES.dedup_threshold_pressed, 64):
                assert verdict(before[first], after[second], threshold) is Verdict.ACCEPTED, (name, first, second)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_clock_and_a_cursor_on_a_window_are_not_a_change(form: str) -> None:
    before = seen(draw(Desktop()), form)
    for name in ("the clock", "the cursor", "cursor on text"):
        after = seen(draw(Desktop().but(**SAME[name])), form)
        assert verdict(before, after, RULES.dedup_threshold) is Verdict.DUPLICATE


@pytest.mark.parametrize("screen", EACH_SCREEN)
def test_a_clock_and_a_cursor_on_any_screen_are_not_a_change_for_a_wide_threshold(screen: Desktop) -> None:
    before = in_forms(draw(screen))
    for name, change in SAME.items():
        after = in_forms(draw(screen.but(**change)))
        for first, second in FORMS:
            apart = distance(before[first].phash, after[second].phash)
            assert verdict(before[first], after[second], 16) is Verdict.DUPLICATE, (name, first, second, apart)


@pytest.mark.parametrize("name", first_of(CORPUS, 2))
def test_text_clock_and_cursor_on_real_screens(name: str) -> None:
    with Image.open(BytesIO(corpus_file(f"screenshots/{name}.png").read_bytes())) as opened:
        before = opened.convert("RGB")
    x, y = random.Random(name).randrange(before.width // 2), before.height // 2
    cursor, typed = before.copy(), before.copy()
    ImageDraw.Draw(cursor).polygon(
        ((x, y), (x, y + 17), (x + 4, y + 13), (x + 11, y + 12)), fill="black", outline="white"
    )
    pen = ImageDraw.Draw(typed)
    pen.rectangle((x, y, x + 450, y + 24), fill="white")
    pen.text((x + 2, y + 2), TYPED, fill="black", font=font(17))
    old, moved, changed = in_forms(before), in_forms(cursor), in_forms(typed)
    for first, second in FORMS:
        assert verdict(old[first], moved[second], RULES.dedup_threshold_pressed) is Verdict.DUPLICATE
        for threshold in (RULES.dedup_threshold, RULES.dedup_threshold_pressed):
            assert verdict(old[first], changed[second], threshold) is Verdict.ACCEPTED


def test_screens_of_another_size_differ_and_tiny_screens_differ_by_any_cell() -> None:
    assert differs(Image.new("L", (40, 20)), Image.new("L", (20, 40)))
    assert differs(Image.new("L", (3, 3)), Image.new("L", (3, 3), 200))
    assert not differs(Image.new("L", (3, 3)), Image.new("L", (3, 3), 5))


def test_sketches_of_the_latest_files_are_cached() -> None:
    cache, read = Sketches(at_most=2), []

    def make(name: str) -> Image.Image:
        return cache.get(name, lambda: read.append(name) or Image.new("L", (1, 1)))

    for name in ("a", "b", "a", "c", "a"):
        make(name)
    assert read == ["a", "b", "c", "a"]
