"""Which text of a page is kept, and which pages a budget admits."""

import pytest

from pipeline.flows.documents.rules.escalation import Budget, Room, judge, parse_budget, sure_words

TEXT = "Invoice 4711 of the Harbour Company for twelve barrels of lamp oil, payable within thirty days"


@pytest.mark.parametrize(
    ("answer", "replaces"),
    [
        (TEXT.replace("lamp", "**lamp**") + "\n\nand a note in the margin", True),
        (TEXT.upper(), True),
        (TEXT.replace("barrels", "bar-\nrels"), True),
        ("", False),
        (" \n", False),
        (TEXT + "\n", False),
        ("I cannot read this picture, since it is too blurred.", False),
        ("An invoice for lamp oil.", False),
        (TEXT[: len(TEXT) // 2], False),
    ],
)
def test_an_answer_replaces_the_text_unless_it_is_empty_equal_or_lacks_sure_words(
    answer: str, *, replaces: bool
) -> None:
    assert judge(answer, TEXT, None).replaces is replaces


def test_words_that_recognition_doubts_need_not_be_in_the_answer() -> None:
    layout = {"blocks": [{"uncertain": [{"text": "Harb0ur"}, {"text": "ba11els"}]}], "garbled": ["BlBesitoss"]}
    text = TEXT.replace("Harbour", "Harb0ur").replace("barrels", "ba11els") + " BlBesitoss"
    assert sure_words(text, layout) == sure_words(TEXT, None) - {"harbour", "barrels"}
    assert judge(TEXT, text, layout).why == "its answer has 100% of the words of which recognition was sure"


def test_a_page_that_is_hardly_text_has_no_sure_words() -> None:
    assert sure_words(TEXT, {"uncertain": 0.8}) == set()
    assert judge("something else", TEXT, {"uncertain": 0.8}).replaces


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    text = "请在三十天内支付十二桶灯油的发票金额"
    assert judge(f"# {text[:9]}\n\n{text[9:]}", text, None).replaces
    assert not judge("对不起,我无法阅读这张图片", text, None).replaces


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("", Budget()),
        ("2.00", Budget(cost=2.0)),
        (".5", Budget(cost=0.5)),
        ("0", Budget(cost=0.0)),
        ("20p", Budget(pages=20)),
        ("0p", Budget(pages=0)),
    ],
)
def test_a_budget_is_money_or_pages(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["p", "2.5p", "-1", "2,00", "1e9", "99999999", "nan", "٢", "2 p", "$2"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a budget"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("room", "now", "is_spent"),
    [
        (Room(Budget(), 9, 9, 9, 1), None, False),
        (Room(Budget(cost=1.0), 0.2, 0.5, 0, 0.1), 3, False),
        (Room(Budget(cost=1.0), 0.2, 0.75, 0, 0.1), 0, False),
        (Room(Budget(cost=1.0), 0.95, 0, 0, 0.1), 0, True),
        (Room(Budget(cost=1.0), 0, 0, 0, 0), None, False),
        (Room(Budget(cost=0.0), 0, 0, 0, 0), 0, True),
        (Room(Budget(pages=3), 9, 9, 2, 1), 1, False),
        (Room(Budget(pages=3), 0, 0, 3, 1), 0, True),
    ],
)
def test_a_budget_admits_pages_by_what_is_left(room: Room, now: int | None, *, is_spent: bool) -> None:
    assert (room.now, room.is_spent) == (now, is_spent)
