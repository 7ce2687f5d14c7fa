"""Tables that continue on the next page."""

from typing import Any

import pytest

from pipeline.flows.documents.rules import split_tables
from pipeline.flows.documents.rules.split_tables import join_tables

HEAD = "| Item | Price |\n| --- | --- |"


def layout(kind: str, top: float, bottom: float, left: float = 50, right: float = 550) -> dict[str, Any]:
    """Return a page of 600 by 800 with one block."""
    return {"width": 600, "height": 800, "blocks": [{"type": kind, "text": "", "bbox": [left, top, right, bottom]}]}


def test_a_repeated_head_is_dropped_and_the_rows_go_to_the_page_where_the_table_begins() -> None:
    pages = [f"# Prices\n\n{HEAD}\n| Nut | 1 |", f"{HEAD}\n| Bolt | 2 |\n\nThe end."]
    assert join_tables(pages, [None, None]) == [f"# Prices\n\n{HEAD}\n| Nut | 1 |\n| Bolt | 2 |", "The end."]


def test_a_head_counts_as_repeated_whatever_its_marks_and_case() -> None:
    pages = [f"{HEAD}\n| Nut | 1 |", "| **ITEM** | Price |\n|---|--:|\n| Bolt | 2 |"]
    assert join_tables(pages, [None, None]) == [f"{HEAD}\n| Nut | 1 |\n| Bolt | 2 |", ""]


def test_a_table_over_three_pages_becomes_one() -> None:
    pages = [f"{HEAD}\n| Nut | 1 |", f"{HEAD}\n| Bolt | 2 |", f"{HEAD}\n| Cog | 3 |\n\nThe end."]
    assert join_tables(pages, [None] * 3) == [f"{HEAD}\n| Nut | 1 |\n| Bolt | 2 |\n| Cog | 3 |", "", "The end."]


def test_without_a_repeated_head_the_places_on_the_pages_decide() -> None:
    pages = [f"{HEAD}\n| Nut | 1 |", "| Bolt | 2 |\n| --- | --- |\n| Cog | 3 |"]
    goes_on = [layout("table", 500, 760), layout("table", 60, 200)]
    assert join_tables(pages, goes_on) == [f"{HEAD}\n| Nut | 1 |\n| Bolt | 2 |\n| Cog | 3 |", ""]
    for others in (
        [None, None],
        [layout("table", 100, 200), layout("table", 60, 200)],
        [layout("table", 500, 760), layout("table", 500, 700)],
        [layout("table", 500, 760), layout("table", 60, 200, left=200)],
        [layout("table", 500, 760), layout("paragraph", 60, 200)],
        [layout("table", 500, 760), {"width": 600, "height": 800, "blocks": []}],
    ):
        assert join_tables(pages, others) == pages


def test_tables_in_html_are_joined_too() -> None:
    head = '<tr><th colspan="2">Prices</th></tr>\n<tr><th>Item</th><th>Price</th></tr>'
    pages = [
        f"<table>\n{head}\n<tr><td>Nut</td><td>1</td></tr>\n</table>",
        f"<table>\n{head}\n<tr><td>Bolt</td><td>2</td></tr>\n</table>\n\nThe end.",
    ]
    whole = f"<table>\n{head}\n<tr><td>Nut</td><td>1</td></tr>\n<tr><td>Bolt</td><td>2</td></tr>\n</table>"
    assert join_tables(pages, [None, None]) == [whole, "The end."]


def test_a_cell_over_two_columns_counts_for_two() -> None:
    goes_on = [layout("table", 500, 760), layout("table", 60, 200)]
    first = '<table>\n<tr><th rowspan="3" colspan="2">Prices</th></tr>\n</table>'
    second = "<table>\n<tr><td>Nut</td><td>1</td></tr>\n</table>"
    assert join_tables([first, second], goes_on) == [first.replace("</table>", second[len("<table>\n") :]), ""]


@pytest.mark.parametrize(
    "pages",
    [
        [f"{HEAD}\n| Nut | 1 |\n\nA note.", f"{HEAD}\n| Bolt | 2 |"],
        [f"{HEAD}\n| Nut | 1 |", f"A note.\n\n{HEAD}\n| Bolt | 2 |"],
        [f"{HEAD}\n| Nut | 1 |", "| Item | Price | Sum |\n| --- | --- | --- |\n| Bolt | 2 | 2 |"],
        [f"{HEAD}\n| Nut | 1 |", "| no table at all"],
        [f"{HEAD}\n| Nut | 1 |", "<table>\n<tr><td>Bolt</td><td>2</td></tr>\n</table>"],
        ["", ""],
        [f"{HEAD}\n| Nut | 1 |"],
    ],
)
def test_separate_tables_stay_separate(pages: list[str]) -> None:
    assert join_tables(pages, [None] * len(pages)) == pages


def test_bars_inside_cells_are_no_columns() -> None:
    pages = ["| a \\| b | c |\n| --- | --- |\n| 1 | 2 |", "| a \\| b | c |\n| --- | --- |\n| x \\| y | 4 |"]
    assert join_tables(pages, [None, None])[0].endswith("| 1 | 2 |\n| x \\| y | 4 |")


def test_a_table_over_a_hundred_pages_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    rows = split_tables._rows
    monkeypatch.setattr(split_tables, "_rows", lambda table: (read.append(len(table)), rows(table))[1])
    head = "<tr><th>Item</th><th>Price</th></tr>"
    pages = [f"<table>\n{head}\n<tr><td>{n}</td><td>five</td></tr>\n</table>" for n in range(100)]
    first, *others = join_tables(pages, [None] * 100)
    assert (first.count("five"), first.count(head), set(others)) == (100, 1, {""})
    assert sum(read) == sum(map(len, pages))
