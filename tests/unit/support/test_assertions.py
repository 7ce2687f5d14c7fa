"""Assertions about Markdown agree with a human reader."""

import json
from collections import Counter

import pytest

from benchmarks.assertions import FOLDER, KINDS, OWN, WHOLE_DOCUMENT, ends_of, load, parse, same
from benchmarks.expected import EXPECTED, KEYWORDS
from benchmarks.expected import load as load_expected
from benchmarks.reading import Reading, plain

PIPE = """
| Model | Plain | Focused<br>ReAct |
|:------|------:|:----------------:|
| Gemma | 2.0%  | **12.6%**        |
|       | 3\\|4  |                  |
| Llama |       | 23.3%            |
"""
HTML = """<table><tr><th rowspan="2">Model</th><th colspan="2">Runtime</th></tr><tr><th>Plain</th><th>Focused</th></tr>
<tr><td>Gemma</td><td>11.68±2.66s</td><td>7.68&plusmn;2.41s</td></tr></table>"""


def holds(markdown: str, kind: str, **fields: object) -> bool:
    return parse({"pdf": "a.pdf", "page": 1, "kind": kind, **fields}).holds(Reading(markdown))


def test_text_is_read_without_marks_tags_and_typography():
    markdown = (
        "## A **bold** [link](http://x.y)\n\n- “Item”—two ﬁne libraries<sup>1</sup>,\n> *quoted* snake_case &lt;5.7%"
    )
    assert plain(markdown) == 'A bold link "Item"-two fine libraries1, quoted snake_case <5.7%'


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("[Player name]'s people", "[Player name]'s people"),
        ("see 1", "see[^1]"),
        ("jacob_carlson", "jacob\\_carlson"),
        ("https://a.b/c", "<https://a.b/c>"),
        ("one two", "one\n\n---\n\ntwo"),
        ("Target <130/80", "Target <130/80"),
        ("-24 units", "-24 units"),
        ("done", "- [x] done"),
    ],
)
def test_text_that_looks_like_markup_is_read_as_meant(text, written):
    assert plain(written).replace("see1", "see 1") == text


def test_present_requires_whole_contiguous_words():
    assert holds("The **full** digiti\u00adzation of ﬁles.", "present", text="full digitization of files")
    assert not holds("full digiti-\nzation", "present", text="full digitization")
    assert not holds("13.45 and 7.68", "present", text="3.45")
    assert not holds("systems", "present", text="stems")
    assert holds("Shen1, Zhang2", "present", text="Shen")


def test_present_is_case_sensitive_by_default():
    assert not holds("TYLER", "present", text="Tyler")
    assert holds("TYLER", "present", text="Tyler", ignore_case=True)


def test_present_allows_as_many_errors_as_it_says():
    assert holds("persistent headaehes oecurring", "present", text="persistent headaches occurring", max_errors=2)
    assert not holds("persistent headaehes oecurring", "present", text="persistent headaches occurring", max_errors=1)


def test_absent_fails_where_the_text_is():
    assert holds("Body.", "absent", text="Page 1 of 3")
    assert not holds("Body.\n\n*page 1 of 3*", "absent", text="Page 1 of 3")
    assert holds("", "absent", text="Page 1 of 3")


def test_absent_at_the_edges_means_a_page_number():
    assert not holds("Text of the page.\n\n14", "absent", text="14", edges=12)
    assert not holds("14\n\nText of the page.", "absent", text="14", edges=12)
    assert holds("Somewhere in the midst, 14 of the cases are counted.", "absent", text="14", edges=12)
    assert holds("Begins, 141 times, and ends with 114.", "absent", text="14", edges=10)


def test_absent_within_headings_or_tables():
    assert holds("Running text.\n", "absent", text="Running text", within="headings")
    assert not holds("### Running text.\n", "absent", text="Running text", within="headings")
    assert not holds("| Running | text |\n|---|---|\n", "absent", text="Running text", within="tables")
    assert holds("Running text", "absent", text="Running text", within="tables")


def test_order_is_that_of_the_texts():
    assert holds("Left column.\n\nRight column.", "order", before="left column", after="right column")
    assert not holds("Right column.\n\nLeft column.", "order", before="left column", after="right column")
    assert not holds("Left column.", "order", before="left column", after="right column")
    assert holds("Left co1umn Rigth column", "order", before="left column", after="right column", max_errors=2)


def test_table_cells_know_their_neighbours():
    assert holds(PIPE, "table", cell="12.6%", left="2.0%", top_heading="Focused ReAct", left_heading="Gemma")
    assert holds(PIPE, "table", cell="23.3%", up="12.6%", left="Llama")
    assert holds(PIPE, "table", cell="3|4", up="2.0%")
    assert not holds(PIPE, "table", cell="12.6%", left="Gemma")
    assert not holds(PIPE, "table", cell="12.6%", top_heading="Plain")
    assert not holds(PIPE, "table", cell="12.6")
    assert not holds("Gemma 2.0% 12.6%", "table", cell="12.6%")


def test_lines_with_pipes_are_no_table_without_a_delimiter_row():
    assert not holds("| Gemma | 2.0% |\n| Llama | 3.0% |", "table", cell="Gemma", right="2.0%")


def test_html_tables_with_spans_are_grids():
    assert holds(HTML, "table", cell="7.68±2.41s", top_heading="Runtime", left="11.68±2.66s")
    assert holds(HTML, "table", cell="Gemma", up="Model")
    assert holds(HTML, "table", cell="Runtime", left="Model")
    assert not holds(HTML, "table", cell="Gemma", top_heading="Runtime")
    assert not holds(HTML, "table", cell="Runtime", right="Runtime")


def test_cells_may_differ_by_spaces_and_errors():
    assert same("142/88mmHg", "142/88 mmHg")
    assert same("142/88 mrnHg", "142/88 mmHg", 2)
    assert not same("142/88 mrnHg", "142/88 mmHg", 1)
    assert not same("", "a", 1)


@pytest.mark.parametrize(
    "markdown", ["## 1 Introduction", "## **1 INTRODUCTION** ##", "1 Introduction\n===", "<h2>1 Introduction</h2>"]
)
def test_heading_in_all_its_forms(markdown):
    assert holds(markdown, "heading", text="1 Introduction")


@pytest.mark.parametrize("markdown", ["1 Introduction", "**1 Introduction**", "# 1 Introduction Text goes on", "#1"])
def test_no_heading(markdown):
    assert not holds(markdown, "heading", text="1 Introduction")


def test_heading_may_be_a_prefix_and_deeper_than_another():
    markdown = "# MAIN GAME\n\n## CREATURES\n\n### Abomination — Same as in DAO\n"
    assert holds(markdown, "heading", text="Creatures", deeper_than="Main Game")
    assert holds(markdown, "heading", text="Abomination", prefix=True, deeper_than="CREATURES")
    assert not holds(markdown, "heading", text="Abomination")
    assert not holds(markdown, "heading", text="CREATURES", deeper_than="Nothing")
    assert not holds("# MAIN GAME\n\n# CREATURES", "heading", text="CREATURES", deeper_than="MAIN GAME")


def test_list_items_go_on_over_lines():
    markdown = "Parts:\n\n- one that\n  goes on\n- two\n\n1. first\n2. second\n"
    assert holds(markdown, "list", text="One that goes on")
    assert holds(markdown, "list", text="second", ordered=True)
    assert not holds(markdown, "list", text="two", ordered=True)
    assert not holds("• two\n", "list", text="two")
    assert not holds("- one two", "list", text="two")


def test_places_of_fuzzy_matches():
    assert ends_of("abc", "xxabdxx", 0) == []
    assert 5 in ends_of("abc", "xxabdxx", 1)


def test_our_assertions_are_well_formed_and_many():
    assertions = load()
    kinds = Counter(assertion.kind for assertion in assertions)
    assert len(assertions) >= 150
    assert set(kinds) == set(KINDS)
    assert all(assertion.group == OWN and assertion.page > WHOLE_DOCUMENT for assertion in assertions)


def test_no_assertion_is_written_twice():
    lines = [line for path in FOLDER.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    assert [line for line, times in Counter(lines).items() if times > 1] == []


def test_an_empty_page_passes_nothing_but_absence():
    wrong = [each for each in load() if each.holds(Reading("")) != (each.kind == "absent")]
    assert wrong == []


def test_the_corpus_own_expectations_become_assertions(tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    keywords = [{"file": "a.pdf", "expectedKeywords": [["Gamma"], ["Bmark%"]]}]
    (folder / "zerox-keywords.json").write_text(json.dumps(keywords))
    (folder / "b.expected.md").write_text("Title\n\n| Parts | | 2,100 |\n| --- | --- | --- |\n| Claim | 7 | Year |\n")
    expectations = load_expected(tmp_path)
    assert [(each.page, each.group) for each in expectations[:2]] == [(1, KEYWORDS), (2, KEYWORDS)]
    assert {(each.pdf, each.group, each.page) for each in expectations[2:]} == {
        ("documents/b.pdf", EXPECTED, WHOLE_DOCUMENT)
    }
    right = Reading("bmark (%)\n\n# Title\n\n|Parts|2,100|\n|-|-|\n|Claim|7|\n\n|Year|\n|-|\n")
    assert [each.holds(right) for each in expectations] == [False, *[True] * (len(expectations) - 1)]
