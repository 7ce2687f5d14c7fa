"""`penstock compare`: which pages, which figures, and texts of models that stay harmless."""

from html.parser import HTMLParser

import pytest

from pipeline.interfaces.cli.compare import html, report
from pipeline.interfaces.cli.compare.figures import Candidate, PageFigures, changed_share, differences, sample


def page(text: str, number: int = 1, **facts: object) -> PageFigures:
    known: dict[str, object] = {"calls": 1, "seconds": 2.0, "input_tokens": 90, "output_tokens": 10, "cost": 0.01}
    known |= {"error": None, "doubtful": False}
    return PageFigures(number, number, text, **(known | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pages", "count", "preferred", "chosen"),
    [
        (120, 3, (), [21, 61, 101]),
        (2, 3, (), [1, 2]),
        (1, 1, (), [1]),
        (120, 3, (7,), [7, 31, 91]),
        (120, 2, (5, 50, 90, 110), [50, 110]),
    ],
)
def test_pages_are_spread_and_doubtful_ones_come_first(
    pages: int, count: int, preferred: tuple[int, ...], chosen: list[int]
) -> None:
    assert sample(pages, count, preferred) == chosen


def test_estimates_count_pages_with_a_call_and_need_a_price() -> None:
    pages = [page("a"), page("b", 2, seconds=4.0, cost=0.03), page("", 3, error="it broke"), page("c", 4, calls=0)]
    assert Candidate("ai", "m", has_price=True, pages=pages).estimate(120) == (pytest.approx(360), pytest.approx(2.4))
    assert Candidate("ai", "m", has_price=False, pages=pages).estimate(10) == (pytest.approx(30), None)
    assert Candidate("nix", "m", has_price=True).estimate(10) == (None, None)


def test_differences_are_those_from_the_first_provider() -> None:
    first = Candidate("local", "local", has_price=True, pages=[page("one two"), page("", 2, error="failed")])
    others = [
        Candidate(name, "m", has_price=True, pages=[page(name), page(name, 2)]) for name in ("one two", "one six")
    ]
    found = differences([first, *others])
    assert list(found) == [("one two", 1), ("one six", 1)]
    assert [changed_share(each) for each in found.values()] == [0.0, 0.5]


def test_the_html_file_loads_nothing_and_escapes_every_text() -> None:
    evil = '<script>alert(1)</script> ![x](https://evil.example/a.png) <img src="https://evil.example/b.png">'
    candidates = [
        Candidate("<b>local", "<i>model", has_price=True, pages=[page("plain text")]),
        Candidate("ai", "m", has_price=True, error="<u>broken", pages=[page(evil), page("", 2, error="<s>error")]),
    ]
    written = html.page("<a>.pdf", candidates, differences(candidates), 120, {1: b"picture"})
    tags: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed(written)
    assert {tag for tag, _ in tags}.isdisjoint({"script", "b", "i", "u", "s", "a", "link"})
    loaded = [value for _, attributes in tags for name, value in attributes.items() if name in {"src", "href"}]
    assert [value.partition(";")[0] for value in loaded if value] == ["data:image/webp"]
    assert "<mark>" in written
    assert "120 pages: cost" in written
    assert "default-src 'none'" in written


def test_columns_of_totals_have_dashes_where_nothing_is_known() -> None:
    known = Candidate("ai", "m", has_price=True, pages=[page("a", doubtful=True)])
    assert report.row(known, 120)[2:] == ["1 of 1", "2.0 s", "100", "0.0100", "1", "–", "1.2000", "4 min 0 s"]
    assert report.row(Candidate("nix", "m", has_price=False), 120)[2:] == ["–"] * 8
