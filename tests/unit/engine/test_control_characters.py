import json
import sys
import unicodedata

import pytest

from pipeline.engine.control_characters import json_escaped, printable, printable_line

VISIBLE = set(map(chr, [*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD]))
"""Format characters that readers see: signs below or around numbers."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\x9b31m\x85b\x7f", r"a\x9b31m\x85b\x7f"),
        ("gnp.\u202efdp", r"gnp.\u202efdp"),
        ("\u2066a\u2069\u200f", r"\u2066a\u2069\u200f"),
        ("over\rwritten\x08", r"over\rwritten".replace(r"\r", r"\x0d") + r"\x08"),
        ("caf\udce9.pdf", r"caf\xe9.pdf"),
        ("half \ud83d", r"half \ud83d"),
        ("\U000e0041\ufeff", r"\U000e0041\ufeff"),
        ("a\x00b\u2028c", r"a\x00b\u2028c"),
        ("line\r\nline\n\tend", "line\nline\n\tend"),
        ("日本語　ünïcode 🎉\xa0…", "日本語　ünïcode 🎉\xa0…"),
        (r"C:\new [bold]", r"C:\new [bold]"),
        ("", ""),
    ],
)
def test_control_characters_are_shown_as_escapes_and_nothing_else_changes(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["می\u200cخواهم", "क्\u200dष", "👩\u200d👩\u200d👧", "👩🏽\u200d🚀", "❤️\u200d🔥"])
def test_joiners_stay_where_a_script_needs_them(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("text", ["pay\u200dpal", "\u200cstart", "a \u200d", "🎉\u200d\u200d"])
def test_joiners_that_hide_in_other_text_are_shown(text: str) -> None:
    assert printable(text) != text
    assert printable(text).isprintable() or "🎉" in text


def test_no_character_of_the_categories_that_command_is_forgotten() -> None:
    every = map(chr, range(sys.maxunicode + 1))
    commands = {char for char in every if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
    assert {char for char in commands if printable(char) == char} == {"\n", "\t"} | VISIBLE


def test_a_line_is_one_line() -> None:
    assert printable_line(" a\n\tb\u2028c\x85d \r\n\x1b") == r"a b c d \x1b"


def test_escaped_json_means_the_same() -> None:
    value = {"a\x7f": ["\x1b\x9b\u202e\n", "\U000e0041", "caf\udce9", "👩\u200d👧", "\\"]}
    text = json_escaped(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(text) == value
    assert printable(text) == text
    text.encode()  # no lone surrogates remain
