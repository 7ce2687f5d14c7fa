"""A search over bases finds published chunks, by words and by vectors, and returns their places."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from pipeline.engine.errors import UserError
from pipeline.flows.knowledge.models import BASES, ITEMS
from pipeline.flows.knowledge.queries import UnknownBase
from pipeline.flows.knowledge.search import search
from pipeline.flows.knowledge.states import ItemType
from pipeline.flows.knowledge.views import Hit
from pipeline.storage.context import Context
from tests.support.knowledge import add_base
from tests.support.knowledge_texts import add_chunks, publish
from tests.support.provider_server import ProviderServer

pytestmark = pytest.mark.both_databases

SEA = ["The harbour wakes before the town.", "Its lantern is lit at dusk.", "Nobody sails in a storm."]
COPPER = ["Copper conducts heat.", "A lantern of copper turns green.", "The meadow is quiet."]


@pytest.fixture
def base(context: Context) -> str:
    return add_base(context, "sea")


def texts(hits: Sequence[Hit]) -> list[str]:
    return [hit.text for hit in hits]


def find(context: Context, bases: list[str] | None, words: str, **options: Any) -> list[str]:
    return texts(search(context, bases, words, **options).hits)


def test_a_hit_names_its_place(context: Context, base: str) -> None:
    item = publish(
        context,
        base,
        SEA,
        heading=["Coast", "Ports"],
        title="On the sea",
        name="sea.pdf",
        type=ItemType.FILE,
        group_id="grp-1",
        group_name="/books",
    )
    result = search(context, [base], "lantern", around=1)
    hit = result.hits[0]
    assert (hit.text, hit.item_id, hit.base_id, hit.base_name) == (SEA[1], item, base, "sea")
    assert (hit.title, hit.source, hit.type, hit.group_name) == ("On the sea", "sea.pdf", ItemType.FILE, "/books")
    assert (hit.heading, hit.page, hit.number) == (("Coast", "Ports"), 2, 1)
    assert (hit.start, hit.end) == (len(SEA[0]) + 2, len(SEA[0]) + 2 + len(SEA[1]))
    assert "lantern" in hit.excerpt
    assert (hit.before, hit.after) == ((SEA[0],), (SEA[2],))
    assert (hit.score, hit.text_rank, hit.vector_rank) == (1.0, 1, 1)
    assert hit.similarity is not None
    assert 0.14 < hit.similarity < 1
    assert (result.lexical, result.note) == (True, "")
    first = search(context, [base], "harbour", around=5).hits[0]
    assert (first.before, first.after) == ((), (SEA[1], SEA[2]))
    assert search(context, [base], "harbour").hits[0].after == ()


def test_bases_are_searched_alone_together_or_all(context: Context, base: str) -> None:
    other = add_base(context, "metal")
    publish(context, base, SEA)
    publish(context, other, COPPER)
    assert find(context, [base], "lantern") == [SEA[1]]
    assert find(context, ["metal"], "lantern") == [COPPER[1]]
    assert set(find(context, [base, other], "lantern")) == {SEA[1], COPPER[1]}
    assert find(context, None, "lantern") == find(context, [base, "metal", base], "lantern")
    assert find(context, [], "lantern") == []


def test_unknown_bases_and_empty_queries_are_refused(context: Context, base: str) -> None:
    with pytest.raises(UnknownBase) as raised:
        search(context, [base, "nowhere"], "x")
    assert raised.value.code == "unknown_base"
    with pytest.raises(UserError):
        search(context, [base], " \n")
    assert find(context, [base], "anything") == []
    for odd in ("' OR \" * : ) (", "\x00", "-", "数" * 10_000, "a " * 5000, "NEAR(a b)", "%_\\"):
        assert find(context, [base], odd + "x") == []


def test_a_question_finds_chunks_with_some_of_its_words(context: Context, base: str) -> None:
    publish(context, base, [*SEA, "数据库连接池泄漏导致服务中断"])
    assert find(context, [base], "Who is it that lights the lantern in the evening?", by_meaning=False)[0] == SEA[1]
    assert find(context, [base], "为什么数据库会泄漏", by_meaning=False) == ["数据库连接池泄漏导致服务中断"]


def test_only_published_chunks_are_found(context: Context, base: str) -> None:
    """A search hides other generations and items being deleted, although they are indexed."""
    item = publish(context, base, SEA)
    deleted = publish(context, base, ["A lantern that is being deleted."])
    with context.db.transaction() as session:
        add_chunks(session, context, base, item, 2, ["A lantern of the next generation."])
        session.execute(update(ITEMS).where(ITEMS.c.id == deleted).values(deleting=True))
    assert find(context, [base], "lantern") == [SEA[1]]
    assert find(context, [base], "lantern", item_ids=[item, deleted]) == [SEA[1]]
    context.db.run(lambda session: session.execute(update(ITEMS).where(ITEMS.c.id == item).values(generation=2)))
    assert find(context, [base], "lantern") == ["A lantern of the next generation."]
    context.db.run(lambda session: session.execute(update(BASES).where(BASES.c.id == base).values(deleting=True)))
    assert find(context, None, "lantern") == []
    with pytest.raises(UnknownBase):
        search(context, [base], "lantern")


def test_hidden_hits_do_not_displace_shown_ones(context: Context, base: str) -> None:
    publish(context, base, ["lantern"] * 150, deleting=True)
    publish(context, base, ["a far longer text that speaks of a lantern only once"])
    assert len(find(context, [base], "lantern")) == 1


def test_filters_leave_out_items(context: Context, base: str) -> None:
    now = context.db.now()
    old = publish(
        context, base, SEA, type=ItemType.URL, url="https://example.com/sea", created_at=now - timedelta(days=9)
    )
    new = publish(context, base, COPPER, type=ItemType.DIRECTORY, group_id="grp-2")
    for options, expected in (
        ({"types": ["url"]}, [SEA[1]]),
        ({"types": ["directory", "note"]}, [COPPER[1]]),
        ({"item_ids": [new]}, [COPPER[1]]),
        ({"item_ids": []}, []),
        ({"group_ids": ["grp-2"]}, [COPPER[1]]),
        ({"since": now - timedelta(days=1)}, [COPPER[1]]),
        ({"types": ["url"], "item_ids": [new]}, []),
    ):
        assert find(context, [base], "lantern", **options) == expected, options
        loosely = find(context, None, "lantern of the meadow", **options)
        assert set(loosely) & {SEA[1], COPPER[1]} == set(expected), options
    assert search(context, [base], "lantern", item_ids=[old]).hits[0].source == "https://example.com/sea"


def test_filters_that_many_chunks_pass_leave_out_items_too(
    context: Context, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.flows.knowledge.search._FEW", 1)
    publish(context, base, SEA, type=ItemType.URL, url="https://example.com/sea")
    publish(context, base, COPPER)
    assert find(context, [base], "lantern", types=["url"]) == [SEA[1]]


def test_scores_lie_between_0_and_1_and_can_be_asked_for(context: Context, base: str) -> None:
    publish(context, base, [f"lantern {'and more words ' * number}" for number in range(30)])
    hits = search(context, [base], "lantern", limit=25).hits
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert (len(hits), scores[0] <= 1, scores[-1] > 0) == (25, True, True)
    least = scores[10]
    assert all(hit.score >= least for hit in search(context, [base], "lantern", min_score=least, limit=25).hits)
    assert find(context, [base], "lantern", min_score=1.1) == []
    alone = search(context, [base], "lantern", by_meaning=False).hits
    assert (alone[0].score, alone[0].vector_rank, alone[0].similarity) == (1.0, None, None)


class TestWithAProvider:
    @pytest.fixture
    def provider(self) -> Iterator[ProviderServer]:
        with ProviderServer(
            vector=lambda text: [1.0, 0.2] if "storm" in text or "gale" in text else [0.1, 1.0]
        ) as server:
            yield server

    @pytest.fixture
    def settings_env(self, provider: ProviderServer) -> dict[str, str]:
        return {
            "PENSTOCK_PROVIDERS__AI__BASE_URL": provider.base_url,
            "PENSTOCK_PROVIDERS__AI__API_KEY": "k",
            "PENSTOCK_PROVIDERS__AI__MODEL": "m",
            "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": "ai",
            "PENSTOCK_KNOWLEDGE__EMBEDDINGS_MODEL": "v1",
        }

    @staticmethod
    def embed(some: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.1] if "storm" in text else [0.0, 1.0] for text in some]

    def test_a_search_by_meaning_adds_hits_and_calls_each_model_once(
        self, context: Context, base: str, provider: ProviderServer
    ) -> None:
        """A base whose model was edited has vectors of both."""
        publish(context, base, SEA, space="ai:v1", embed=self.embed)
        publish(context, add_base(context, "two"), ["Another storm."], space="ai:v1", embed=self.embed)
        publish(context, base, ["A storm at night."], space="ai:v2", embed=self.embed)
        publish(context, base, ["gale"])
        result = search(context, None, "gale")
        assert set(texts(result.hits)[:4]) == {SEA[2], "Another storm.", "A storm at night.", "gale"}
        assert {hit.text for hit in result.hits if hit.text_rank} == {"gale"}
        assert sorted(record.body["model"] for record in provider.records) == ["v1", "v2"]
        assert (result.note, result.lexical) == ("", True)

    def test_without_the_provider_a_search_matches_words_and_notes_it(
        self, context: Context, base: str, provider: ProviderServer
    ) -> None:
        publish(context, base, SEA, space="ai:v1", embed=self.embed)
        publish(context, base, ["A lantern by words."], space="elsewhere:v1", embed=self.embed)
        provider.stop()
        result = search(context, [base], "lantern")
        assert set(texts(result.hits)) == {SEA[1], "A lantern by words."}
        assert result.note.count("By words alone, without meaning") == 2
        assert "elsewhere" in result.note
        assert result.hits[0].score == 1.0
