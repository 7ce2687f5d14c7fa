"""Markers of list items that recognition overlooks or joins to the next word."""

from PIL import Image, ImageDraw

from pipeline.reading.ocr import markers
from pipeline.reading.ocr.direction import RecognisedText


def piece(text, left, top, right=500, height=30):
    corners = ((left, top), (right, top), (right, top + height), (left, top + height))
    return RecognisedText(text, corners, (0.9,) * len(text.split()))


def texts(pieces, picture=None):
    return [each.text for each in markers.marked(pieces, picture or Image.new("L", (600, 300), "white"))]


def with_dots(*boxes):
    """Return a picture of three lines, with black shapes in front of them."""
    picture = Image.new("L", (600, 300), "white")
    draw = ImageDraw.Draw(picture)
    for top in (50, 90, 130):
        draw.text((100, top), "Words of an item that goes on", fill=0, font_size=22)
    for box in boxes:
        draw.ellipse(box, fill=0)
    return picture


def test_bullets_far_from_their_items_are_found_in_the_picture():
    lines = [piece("Words of an item", 98, top) for top in (46, 86, 126)]
    dots = [(64, top, 72, top + 8) for top in (57, 97)]
    found = markers.marked(lines, with_dots(*dots))
    assert [each.text[:3] for each in found] == ["• W", "• W", "Wor"]
    assert found[0].corners[0][0] < 66
    assert len(found[0].words) == 5


def test_bullets_at_the_edge_of_the_picture_are_found():
    lines = [piece("Words of an item", 98 - 60, top) for top in (46, 86, 126)]
    picture = with_dots((64, 57, 72, 65), (64, 97, 72, 105)).crop((60, 0, 600, 300))
    assert [text[0] for text in texts(lines, picture)] == ["•", "•", "W"]


def test_a_single_dot_and_dots_inside_other_text_are_not_bullets():
    lines = [piece("Words of an item", 98, top) for top in (46, 86, 126)]
    dots = [(64, top, 72, top + 8) for top in (57, 97)]
    assert not any("•" in text for text in texts(lines, with_dots(dots[0])))
    label = piece("Name ......", 20, 46, 80)
    assert not any("•" in text for text in texts([label, *lines], with_dots(*dots))[:2])


def test_markers_joined_to_the_next_word_are_parted():
    lines = [piece(text, 50, 50) for text in ("1.Connect it", "2.7Credits", "(a)some", "1.5V", "3.14", "e.g.words")]
    assert texts(lines) == ["1. Connect it", "2.7 Credits", "(a) some", "1.5V", "3.14", "e.g.words"]


def test_signs_that_the_engine_mistook_before_items_are_mended():
    assert texts([piece("一 deux", 50, 10), piece("一 trois", 50, 50)]) == ["– deux", "– trois"]
    assert texts([piece("I. Lance", 50, 10), piece("2. Tire", 50, 50)]) == ["1. Lance", "2. Tire"]
    assert texts([piece(text, 50, 50) for text in ("I. Scope", "2. Terms", "II. Law")])[0] == "I. Scope"
    assert texts([piece("— Monsieur?", 50, 10), piece("— Oui.", 50, 50)]) == ["— Monsieur?", "— Oui."]
    assert texts([piece("一 二三", 50, 10)]) == ["一 二三"]


def test_signs_that_the_engine_does_not_know_before_lines_below_each_other_are_bullets():
    found = markers.marked([piece(" Bring tablets", 50, 10), piece(" Drink water", 50, 50)], Image.new("L", (600, 300)))
    assert [(each.text, len(each.words)) for each in found] == [("• Bring tablets", 3), ("• Drink water", 3)]
    assert texts([piece(" Share", 50, 10), piece(" Cut", 300, 10)]) == [" Share", " Cut"]
