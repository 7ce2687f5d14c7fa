"""A full-text search of one scope or hundreds has one ranking, and does not match the names of scopes."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, select

from pipeline.flows.knowledge.models import BASES, CHUNKS, FULL_TEXT, ITEMS
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text

pytestmark = pytest.mark.both_databases

NOW = datetime.now(UTC)
BASE_IDS = [f"{number:04x}face{number:08x}" for number in range(70)]
WORDS = ("harbour", "lantern", "copper", "meadow")


@pytest.fixture
def filled(context: Context) -> Context:
    """Bases with one item each, whose chunks repeat `harbour` more often as their numbers grow."""
    with context.db.transaction() as session:
        chunk_id = 0
        for place, base_id in enumerate(BASE_IDS):
            base = {"id": base_id, "name": base_id, "provider": "local", "chunk_tokens": 100, "chunk_overlap": 0}
            session.execute(insert(BASES).values(**base, created_at=NOW, updated_at=NOW))
            item = {"id": base_id, "base_id": base_id, "position": 1, "type": "note", "name": "a", "source_key": "a"}
            session.execute(insert(ITEMS).values(**item, created_at=NOW, updated_at=NOW))
            texts = []
            for number in range(3):
                chunk_id += 1
                body = " ".join([WORDS[0]] * (number + 1) + [WORDS[1 + place % 3]] * 3 + ["filler"] * (20 - number))
                chunk = {"item_id": base_id, "base_id": base_id, "generation": 1, "number": number, "batch": 0}
                row = {"id": chunk_id, "text": body, "start": 0, "end": 1, "digest": "", "created_at": NOW}
                session.execute(insert(CHUNKS).values(**chunk, **row))
                texts.append(Text(chunk_id, head="", apps=base_id, body=body))
            FULL_TEXT.put(session, texts)
    return context


def search_ids(
    context: Context, words: str, scopes: list[str] | None, limit: int = 1000, *, any_word: bool = False
) -> list[int]:
    with context.db.read() as session:
        return FULL_TEXT.search(session, words, limit, scopes=scopes, any_word=any_word)


@pytest.mark.parametrize("count", [1, 2, 64, 65, 70])
@pytest.mark.parametrize(
    ("words", "any_word"), [("harbour", False), ("harbour lantern", False), ("lantern copper", True)]
)
def test_a_search_of_scopes_keeps_the_order_of_the_whole_ranking(
    filled: Context, words: str, count: int, *, any_word: bool
) -> None:
    """The ranking stays for few scopes, too: a rare scope does not raise its items' rank."""
    everywhere = search_ids(filled, words, None, any_word=any_word)
    here = {place * 3 + number for place in range(count) for number in (1, 2, 3)}
    assert here & set(everywhere)
    assert search_ids(filled, words, BASE_IDS[:count], any_word=any_word) == [
        each for each in everywhere if each in here
    ]


def test_no_scope_and_unknown_scopes_have_no_hits(filled: Context) -> None:
    for scopes in ([], ["f" * 16], ["f" * 16] * 100):
        assert search_ids(filled, "harbour", scopes) == []


@pytest.mark.parametrize("words", [BASE_IDS[0], BASE_IDS[3][:4], "0000face", "000"])
def test_words_do_not_match_the_name_of_a_scope(filled: Context, words: str) -> None:
    assert search_ids(filled, words, BASE_IDS) == []
    assert search_ids(filled, words, BASE_IDS[:1]) == []


def test_a_search_is_limited_to_the_rows_of_a_statement(filled: Context) -> None:
    first = select(CHUNKS.c.id).where(CHUNKS.c.number == 0)
    with filled.db.read() as session:
        hits = FULL_TEXT.search(session, "harbour", 1000, scopes=BASE_IDS[:5], only=first)
    assert sorted(hits) == [1, 4, 7, 10, 13]
