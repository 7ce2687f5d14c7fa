"""What counts as an idiom, where, and when a limit fails."""

from pathlib import Path

import pytest

from tests.support import prose

CODE = '''"""Whoever calls is told."""

NAME = "nobody reads strings"
# There is nothing here.
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "module.py"
    file.write_text(CODE)
    return file


def test_docstrings_and_comments_count_and_other_strings_do_not(module: Path) -> None:
    counted = prose.count([module])
    assert (counted.idioms.total(), counted.words) == (3, 8)
    assert counted.worst(1) == [(2, f"{module}:1: Whoever calls is told.")]


def test_every_line_of_a_page_counts(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Title\n\nNobody knows.\n")
    assert prose.count(prose.files_below([tmp_path])).idioms.total() == 1


def test_a_rate_above_the_limit_fails_and_shows_the_lines(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([str(module), "--limit", "400"]) == 0
    assert prose.main([str(module), "--limit", "300"]) == 1
    shown = capsys.readouterr()
    assert f"{module}:1: Whoever calls is told." in shown.out
    assert "The limit is 300.0." in shown.err
