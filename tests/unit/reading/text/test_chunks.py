"""Chunks have their place: offsets, page and headings. No text takes unbounded time."""

import time

import pytest

from pipeline.engine.errors import UnitError
from pipeline.reading.sandbox.limits import Unwanted
from pipeline.reading.text.chunks import Chunk, _count, count_tokens, split
from pipeline.reading.text.sections import Reading, Section

SENTENCE = "The quick brown fox jumps over the lazy dog. "


def chunks(*sections: Section, tokens: int = 60, overlap: int = 10) -> list[Chunk]:
    reading = Reading("", list(sections))
    parts = split(reading, tokens, overlap)
    assert all(reading.text[chunk.start : chunk.end] == chunk.text for chunk in parts)
    assert all(chunk.text.strip() for chunk in parts)
    assert parts == split(reading, tokens, overlap)
    return parts


def test_a_headings_link_to_itself_is_not_part_of_its_name() -> None:
    text = '# [](#guide)Guide\n\none\n\n## Oil [¶](#oil "Link to this heading")\n\ntwo\n\n### [C#](/c)\n\nthree'
    parts = split(Reading("", [Section(text)]), 8, 0)
    assert parts[-1].heading == ("Guide", "Oil", "C#")


def test_a_chunk_stands_under_the_headings_above_it():
    headings = "# Guide", "## Set *up*", "Other\n-----", "# End"
    text = "\n\n".join(f"{heading}\n\n{SENTENCE * 8}" for heading in headings)
    parts = chunks(Section(text))
    assert not any(chunk.text.startswith(("# Guide", "Other")) and len(chunk.text) < 20 for chunk in parts)
    paths = list(dict.fromkeys(chunk.heading for chunk in parts))
    assert paths == [("Guide",), ("Guide", "Set up"), ("Guide", "Other"), ("End",)]


def test_headings_go_on_over_pages_but_not_over_web_pages():
    pages = chunks(Section("# One\n\nfirst", 1), Section("second", 2))
    assert [(chunk.page, chunk.heading) for chunk in pages] == [(1, ("One",)), (2, ("One",))]
    sites = chunks(Section("# One\n\nfirst", source="http://a/1"), Section("second", source="http://a/2"))
    assert [(chunk.source, chunk.heading) for chunk in sites] == [("http://a/1", ("One",)), ("http://a/2", ())]


def test_a_hash_in_code_makes_no_heading():
    assert chunks(Section("```sh\n# not a heading\n```\n\ntext"))[0].heading == ()
    assert chunks(Section("# a comment\nx = 1", plain=True))[0].heading == ()


def test_all_text_is_in_a_chunk():
    text = "\n\n".join(f"**Part {number}**\n\n{SENTENCE * 12}" for number in range(120))
    parts = chunks(Section(text))
    covered = bytearray(len(text))
    for chunk in parts:
        covered[chunk.start : chunk.end] = b"\1" * (chunk.end - chunk.start)
    assert "".join(char for char, known in zip(text, covered, strict=True) if not known).strip() == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n" * 50_000,
        "a" * 60_000,
        "数据库检索系统" * 5_000,
        "[" * 50_000,
        ">" * 30_000,
        "# \n" * 20_000,
        "```\n" * 20_000,
    ],
    ids=["nothing", "blank", "letter", "chinese", "brackets", "quotes", "headings", "fences"],
)
def test_odd_texts_are_split_in_bounded_time(text: str):
    began = time.thread_time()
    split(Reading("", [Section(text)]), 300, 30)
    assert time.thread_time() - began < 10


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(UnitError, match="overlap") as error:
        split(Reading("", [Section("text")]), 50, 50)
    assert error.value.code == "chunk_size"


def test_splitting_stops_when_it_is_not_wanted():
    with pytest.raises(Unwanted):
        split(Reading("", [Section(SENTENCE * 100)]), 50, 0, lambda: False)


def test_the_words_of_a_text_are_counted_once_each():
    """Counting whole chunks anew took 80 % of the time for the chunks of a large document."""
    text = "We’ll see 1,234.50 € of Straße, I'm (told) ²/3 é: 中文 | end...  Then **it**, \n\n- `goes` on. x, y " * 40
    _count.cache_clear()
    tokens = count_tokens(text)
    assert _count.cache_info().misses < 20
    assert tokens == _count.__wrapped__(text)
