"""Every kind of file becomes text or is clearly refused, whatever it does to the process that reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading import child
from pipeline.reading.content import Limits, Reading
from pipeline.reading.text_files import read_file
from tests.support.corpus import corpus_file

LIMITS = Limits()


@pytest.fixture(autouse=True, scope="module")
def _children_end() -> Iterator[None]:
    yield
    child.close_idle()


def read(path: Path, name: str = "", limits: Limits = LIMITS) -> Reading:
    return read_file(path, name or path.name, limits, lambda: True)


def refusal(path: Path, name: str = "", limits: Limits = LIMITS) -> UnitError:
    with pytest.raises(UnitError) as caught:
        read(path, name, limits)
    assert caught.value.kind == ErrorKind.PERMANENT
    return caught.value


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test.docx", "AutoGen: Enabling Next-Gen LLM Applications"),
        ("test.epub", "A test EPUB document"),
        ("test.pdf", "# 1 Introduction"),
        ("test.pptx", "A table to test parsing"),
        ("test.xlsx", "| Alpha | Beta |"),
        ("test_blog.html", "Large language models"),
        ("test_mskanji.csv", "| 髙橋淳 | 35 | 名古屋 |"),
        ("test_rss.xml", "# The Official Microsoft Blog"),
        ("test_wikipedia.html", "## History"),
    ],
)
def test_files_of_the_corpus_are_read(name: str, says: str):
    assert says in read(corpus_file(f"knowledge/{name}")).text


def test_pages_and_slides_keep_their_numbers():
    assert [section.page for section in read(corpus_file("knowledge/test.pptx")).sections] == [1, 2, 3, 4, 5, 6]
    assert [section.page for section in read(corpus_file("knowledge/test.pdf")).sections] == [1]


def test_random_bytes_are_refused():
    assert refusal(corpus_file("knowledge/random.bin")).code == "unsupported"
