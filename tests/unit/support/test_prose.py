"""The idioms that count, the text that is read, and the limit."""

from pathlib import Path

import pytest

from tests.support import prose

CODE = '''"""Whoever calls is told."""

NAME = "nobody.txt"
MESSAGE = "nobody reads this"
# There is nothing here.
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "module.py"
    file.write_text(CODE)
    return file


def test_docstrings_comments_and_messages_count_and_names_do_not(module: Path) -> None:
    counted = prose.count([module])
    assert (counted.idioms.total(), counted.words) == (4, 11)
    assert counted.worst(1) == [(2, f"{module}:1: Whoever calls is told.")]


def test_every_line_of_a_page_counts_and_the_text_of_a_template(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Title\n\nNobody knows.\n")
    (tmp_path / "page.html").write_text('<p\nid="nobody">{# nobody #}Nobody knows.</p>\n')
    counted = prose.count(prose.files_below([tmp_path]))
    assert {line for _, line in counted.worst(9)} == {
        f"{tmp_path}/page.md:3: Nobody knows.",
        f"{tmp_path}/page.html:2: Nobody knows.",
    }


def test_a_rate_above_the_limit_fails_and_shows_the_lines(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([str(module), "--limit", "400"]) == 0
    assert prose.main([str(module), "--limit", "300"]) == 1
    shown = capsys.readouterr()
    assert f"{module}:1: Whoever calls is told." in shown.out
    assert "The limit is 300.0." in shown.err
