"""Regions of a layout model, as the rules receive them."""

import math

import pytest

from pipeline.reading.layout import doubt, profile, rotation
from pipeline.reading.layout.model import Line, Region
from pipeline.reading.layout.page import PageContent, cleaned, convert
from pipeline.reading.layout.regions import MAX_REGIONS, covering, holding, of_kind
from pipeline.reading.layout.regions import cleaned as cleaned_regions

TEXT = Region("text", (10, 10, 300, 400), 0.9)


def fit(*regions):
    return cleaned_regions(regions, 600, 800)


def line(text, left, top, width=200.0):
    return Line(text, left, top, left + width, top + 10, 10.0)


def test_regions_end_where_the_page_ends():
    (region,) = fit(Region("table", (-1e9, 700, 1e9, math.inf), 0.8))
    assert region.box == (0, 700, 600, 800)


@pytest.mark.parametrize(
    "region",
    [
        Region("text", (300, 10, 10, 400), 0.9),
        Region("text", (10, 400, 300, 10), 0.9),
        Region("text", (math.nan, 10, 300, 400), 0.9),
        Region("text", (10, 10, math.nan, 400), 0.9),
        Region("text", (700, 10, 900, 400), 0.9),
        Region("text", (10, 10, 10.5, 400), 0.9),
        Region("text", (10, 10, 300, 400), math.nan),
        Region("text", (10, 10, 300, 400), 0.1),
    ],
)
def test_regions_off_the_page_or_uncertain_ones_are_dropped(region):
    assert fit(region, TEXT) == (TEXT,)


def test_of_two_kinds_for_one_place_the_surer_one_stays():
    table = Region("table", (12, 10, 300, 405), 0.6)
    assert fit(table, TEXT) == (TEXT,)
    assert fit(table._replace(score=0.95), TEXT) == (table._replace(score=0.95),)


def test_a_part_of_the_same_kind_goes_and_one_of_another_kind_stays():
    part, caption = Region("text", (20, 20, 200, 100), 0.8), Region("figure_caption", (20, 350, 200, 390), 0.5)
    assert fit(part, caption, TEXT) == (TEXT, caption)


def test_the_most_certain_of_too_many_regions_stay():
    many = [
        Region("text", (n % 20 * 30.0, n // 20 * 15.0, n % 20 * 30.0 + 20, n // 20 * 15.0 + 10), 0.4 + n / 2000)
        for n in range(1000)
    ]
    kept_regions = fit(*many)
    assert len(kept_regions) == MAX_REGIONS
    assert min(region.score for region in kept_regions) > 0.85


def test_a_line_is_in_the_smallest_region_that_holds_its_middle():
    figure, caption = Region("figure", (0, 0, 600, 500), 0.9), Region("figure_caption", (100, 450, 500, 480), 0.6)
    regions = fit(figure, caption)
    assert holding(regions, line("Fig. 1", 150, 460)) == caption
    assert holding(regions, line("axis", 150, 300)) == figure
    assert holding(regions, line("text", 150, 600)) is None
    assert of_kind(regions, "figure", "table") == [figure]


def test_a_box_belongs_to_the_region_that_covers_most_of_it():
    left, right = Region("text", (0, 0, 300, 800), 0.9), Region("text", (310, 0, 600, 800), 0.9)
    assert covering((left, right), (200, 10, 400, 50)) is None
    assert covering((left, right), (200, 10, 320, 50)) == left
    assert covering((), (200, 10, 320, 50)) is None


@pytest.mark.parametrize("angle", [90, 180, 270])
def test_regions_turn_with_their_lines(angle):
    content = PageContent(
        600, 800, (Line("up", 50, 60, 60, 200, 10.0, (), angle),), regions=(Region("text", (50, 60, 60, 200), 0.9),)
    )
    turned = rotation.upright(content, angle)
    assert turned.regions[0].box == turned.lines[0].box


def test_regions_alone_change_no_page_of_one_column():
    lines = tuple(line(f"line {n} of running text", 50, 50 + 12 * n) for n in range(40))
    regions = (Region("text", (40, 40, 300, 540), 0.9), Region("text", (-5, 1e9, 3, -7), 0.9))
    assert convert(PageContent(600, 800, lines, regions=regions)) == convert(PageContent(600, 800, lines))


def doubts(lines, pages=20, shapes=()):
    content = cleaned(PageContent(600, 800, tuple(lines), shapes=tuple(shapes)))
    return doubt.wants_regions(content, profile.DocumentProfile(pages=pages, body_size=10.0))


def test_running_text_is_not_doubted():
    assert not doubts(line(f"line {n}", 50, 50 + 12 * n, 480) for n in range(40))


def test_lines_beside_lines_are():
    assert doubts(line(f"line {n}", 50 + 250 * (n % 2), 50 + 12 * (n // 2)) for n in range(40))


def test_a_map_takes_too_long_to_draw():
    beside = [line(f"line {n}", 50 + 250 * (n % 2), 50 + 12 * (n // 2)) for n in range(40)]
    assert not doubts(beside, shapes=[(1.0, 1.0, 2.0, 2.0)] * 6_000)


def test_a_small_table_in_running_text_is_doubted_beside_a_picture_and_a_list_is_not():
    prose = [line(f"line {n}", 50, 50 + 12 * n, 480) for n in range(40)]
    table = [line("cell", 50 + 150 * (n % 3), 540 + 12 * (n // 3), 40) for n in range(6)]
    items = [line(text, left, 640 + 12 * n) for n in range(9) for text, left in (("9.", 50), ("an item", 270))]
    assert not doubts([*prose, *table])
    assert doubts([*prose, *table], shapes=[(50.0, 540.0, 90.0, 580.0)])
    assert not doubts([*prose, *items], shapes=[(50.0, 640.0, 90.0, 680.0)])
