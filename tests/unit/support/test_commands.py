"""Commands that the benchmarks time beside markitdown's."""

import pytest

from benchmarks import commands
from benchmarks.support import BenchmarkError


def test_without_markitdown_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "pdfminer" else name)
    with pytest.raises(BenchmarkError, match=r"-m pip install 'markitdown\[pdf\]'"):
        commands._turn("page", tmp_path)
