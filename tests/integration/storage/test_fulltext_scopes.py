"""Full text of one scope or of hundreds has one ranking, and words are not looked for in the scopes' names."""

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
    """Each base has an item with chunks, which say `harbour` the more often the higher their number."""
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


def found(
    context: Context, words: str, scopes: list[str] | None, limit: int = 1000, *, any_word: bool = False
) -> list[int]:
    with context.db.read() as session:
        return FULL_TEXT.search(session, words, limit, scopes=scopes, any_word=any_word)


@pytest.mark.parametrize("count", [1, 2, 64, 65, 70])
@pytest.mark.parametrize(
    ("words", "any_word"), [("harbour", False), ("harbour lantern", False), ("lantern copper", True)]
)
def test_scopes_leave_out_the_others_and_keep_the_order(
    filled: Context, words: str, count: int, *, any_word: bool
) -> None:
    """Also of few: how rare a scope is makes its items no better."""
    everywhere = found(filled, words, None, any_word=any_word)
    here = {place * 3 + number for place in range(count) for number in (1, 2, 3)}
    assert here & set(everywhere)
    assert found(filled, words, BASE_IDS[:count], any_word=any_word) == [each for each in everywhere if each in here]


def test_no_scope_and_unknown_scopes_have_nothing(filled: Context) -> None:
    for scopes in ([], ["f" * 16], ["f" * 16] * 100):
        assert found(filled, "harbour", scopes) == []


@pytest.mark.parametrize("words", [BASE_IDS[0], BASE_IDS[3][:4], "0000face", "000"])
def test_words_do_not_match_the_name_of_a_scope(filled: Context, words: str) -> None:
    assert found(filled, words, BASE_IDS) == []
    assert found(filled, words, BASE_IDS[:1]) == []


def test_only_what_a_statement_selects_is_found(filled: Context) -> None:
    first = select(CHUNKS.c.id).where(CHUNKS.c.number == 0)
    with filled.db.read() as session:
        hits = FULL_TEXT.search(session, "harbour", 1000, scopes=BASE_IDS[:5], only=first)
    assert sorted(hits) == [1, 4, 7, 10, 13]
