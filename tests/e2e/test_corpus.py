"""PDFs of the corpus: one command converts files of many kinds without any service."""

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cli import Cli
from tests.support.corpus import corpus_file
from tests.support.rotation import Rotation

KEYWORDS = "documents/zerox-keywords.json"
REFUSED = {"failing-encrypted", "failing-invalid", "failing-missing-pages", "failing-missing-root", "password"}
ELSEWHERE = {"DA-619p", "MEDRPT-2024-PAT-3847_medical_report_scan", "loremipsum-flat"}
"""Long documents that other tests convert: those of killed pools the first, unit tests of recognition the scans."""
PAGES = {"REPAIR-2022-INV-001_multipage": 3, "multi-column-2p": 2, "zerox-0013": 3}
ALWAYS = REFUSED | {"multi-column-2p", "zerox-0013"}
"""Documents converted in each run, beside those of the rotation: refused ones, and two of several pages."""
LEAST_SHARE_OF_KEYWORDS, SHARE_OF_ALL = 0.7, 0.9
"""Shares of keywords in each document, and in all together. The rest is handwriting and mistakes of the list."""


# Text recognition takes minutes of CPU time, and other tests share the machine.
pytestmark = pytest.mark.timeout(1800)


class Pdf(NamedTuple):
    """A file of the corpus."""

    name: str
    pinned: bool


@pytest.fixture(scope="session")
def converted(
    shared_stack: Cli, tmp_path_factory: pytest.TempPathFactory, rotation: Rotation
) -> dict[str, dict[str, object]]:
    """`convert`'s report of each PDF of this run, by its name without `.pdf`."""
    cli = shared_stack.at(tmp_path_factory.mktemp("corpus"))
    folder = cli.cwd / "in"
    folder.mkdir()
    there = {path.stem: path for path in corpus_file(KEYWORDS).parent.glob("*.pdf")}
    for pdf in rotation.of(Pdf(name, name in ALWAYS) for name in there.keys() - ELSEWHERE):
        shutil.copy(there[pdf.name], folder)
    result = cli.run("convert", "--json", "-o", cli.cwd / "out", folder, timeout_s=1500)
    assert result.code == 1, "some files are broken"
    return {Path(document["input"]).stem: document for document in result.documents()}


def words(text: str) -> str:
    """Reduce a text to letters and digits, without markup, case and spaces, to compare keywords."""
    return re.sub(r"[\W_]+", "", text.casefold())


def test_every_sound_pdf_is_completed_and_every_broken_one_refused(converted: dict[str, dict[str, object]]) -> None:
    refused = {name for name, document in converted.items() if document["status"] == "REFUSED"}
    assert refused == REFUSED
    assert {converted[name]["status"] for name in converted.keys() - REFUSED} == {"COMPLETED"}
    for name in PAGES.keys() & converted.keys():
        assert converted[name]["pages"] == PAGES[name]
    assert not [name for name in converted.keys() - REFUSED if converted[name]["doubtful"]]


def test_every_result_has_text(converted: dict[str, dict[str, object]]) -> None:
    for name in converted.keys() - REFUSED:
        assert len(words(Path(str(converted[name]["output"])).read_text())) > 30, name


def test_most_expected_keywords_are_found(converted: dict[str, dict[str, object]]) -> None:
    shares, matched, expected = {}, 0, 0
    expectations = {Path(entry["file"]).stem: entry for entry in json.loads(corpus_file(KEYWORDS).read_text())}
    for name in expectations.keys() & converted.keys():
        text = words(Path(str(converted[name]["output"])).read_text())
        keywords = [words(keyword) for page in expectations[name]["expectedKeywords"] for keyword in page]
        known = sum(keyword in text for keyword in keywords)
        shares[name], matched, expected = known / len(keywords), matched + known, expected + len(keywords)
    assert min(shares.values()) >= LEAST_SHARE_OF_KEYWORDS, shares
    if shares.keys() == expectations.keys():
        assert matched / expected >= SHARE_OF_ALL, shares
