"""Each part of each benchmark runs and measures every figure that it promises. No test judges the figures."""

import json
import subprocess
import sys

import pytest

from benchmarks import console, documents, kernel, knowledge, limits, moves, nodes, screenshots, start
from benchmarks.suite import Suite
from benchmarks.support import ROOT
from tests.support.corpus import corpus_file

SUITES = (
    console.SUITE,
    documents.SUITE,
    kernel.SUITE,
    knowledge.SUITE,
    limits.SUITE,
    moves.SUITE,
    nodes.SUITE,
    screenshots.SUITE,
    start.SUITE,
)
DOWNLOADS = {"setup"}
"""Parts that install Penstock in a new environment."""
PARTS = [
    pytest.param(suite, name, id=f"{suite.module}-{name}")
    for suite in SUITES
    for name in suite.parts
    if name not in DOWNLOADS
]

pytestmark = [pytest.mark.slow, pytest.mark.rotating]


@pytest.mark.parametrize(("suite", "part"), PARTS)
def test_a_part_measures_every_figure_that_it_promises(
    suite: Suite, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus_file("documents/DA-619p.pdf")
    code = suite.main(["--quick", "--only", part])
    output = capsys.readouterr().out
    figures = json.loads(output.splitlines()[-1])
    assert list(figures) == list(suite.aims), output
    assert [key for key in suite.parts[part].keys if figures[key] is None] == [], output
    assert code == 0, output


def test_quality_of_conversion_is_counted_for_every_converter() -> None:
    corpus_file("documents/DA-619p.pdf")
    command = [sys.executable, "-m", "benchmarks.conversion", "--quick"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert list(figures) == [
        "passed",
        "total",
        "markitdown_passed",
        "pdfium_passed",
        "markitdown_unseen",
        "pdfium_unseen",
        "unseen_first",
        "unseen_last",
        "unseen_total",
        "rival_unseen",
        "third_first",
        "third_last",
        "third_total",
        "rival_third",
        "pages_per_s",
        "model_pages_per_s",
        "peak_mb",
        "ocr_s_per_page",
        "rival_pages_per_s",
    ]
    assert [key for key, figure in figures.items() if figure is None] == ["ocr_s_per_page"], ended.stdout
    assert ended.returncode == 0, ended.stdout + ended.stderr
