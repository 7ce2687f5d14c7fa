"""PDFs of the corpus, converted by the command line without any service: one command, and all sorts of files."""

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
"""Long ones, which other tests convert: killed pools the first, unit tests of recognition the scans."""
PAGES = {"REPAIR-2022-INV-001_multipage": 3, "multi-column-2p": 2, "zerox-0013": 3}
ALWAYS = REFUSED | {"multi-column-2p", "zerox-0013"}
"""Documents converted beside those whose turn it is: refused ones, and two of several pages."""
LEAST_SHARE_OF_KEYWORDS, SHARE_OF_ALL = 0.7, 0.9
"""Shares found in each document, and in all together. The rest is handwriting, and slips in the expectations."""


# Text recognition is the one thing here that takes a processor for long, and others use it as well.
pytestmark = pytest.mark.timeout(1800)


class Pdf(NamedTuple):
    """A file of the corpus."""

    name: str
    pinned: bool


@pytest.fixture(scope="session")
def converted(
    shared_stack: Cli, tmp_path_factory: pytest.TempPathFactory, rotation: Rotation
) -> dict[str, dict[str, object]]:
    """What `convert` reported of each PDF that is due, by its name without `.pdf`."""
    cli = shared_stack.at(tmp_path_factory.mktemp("corpus"))
    folder = cli.cwd / "in"
    folder.mkdir()
    there = {path.stem: path for path in corpus_file(KEYWORDS).parent.glob("*.pdf")}
    for pdf in rotation.of(Pdf(name, name in ALWAYS) for name in there.keys() - ELSEWHERE):
        shutil.copy(there[pdf.name], folder)
    result = cli.run("convert", "--json", "-o", cli.cwd / "out", folder, timeout_s=1500)
    assert result.code == 1, "some are broken"
    return {Path(document["input"]).stem: document for document in result.documents()}


def words(text: str) -> str:
    """A text as keywords are compared: letters and digits alone, without markup, case and spaces."""
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
    shares, found, asked = {}, 0, 0
    expectations = {Path(one["file"]).stem: one for one in json.loads(corpus_file(KEYWORDS).read_text())}
    for name in expectations.keys() & converted.keys():
        text = words(Path(str(converted[name]["output"])).read_text())
        keywords = [words(keyword) for page in expectations[name]["expectedKeywords"] for keyword in page]
        known = sum(keyword in text for keyword in keywords)
        shares[name], found, asked = known / len(keywords), found + known, asked + len(keywords)
    assert min(shares.values()) >= LEAST_SHARE_OF_KEYWORDS, shares
    if shares.keys() == expectations.keys():
        assert found / asked >= SHARE_OF_ALL, shares
