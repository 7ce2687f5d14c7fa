from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from pipeline.engine import traces
from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.engine.traces import AiCall
from pipeline.flows.screenshots import deletion, queries
from pipeline.flows.screenshots.graph import nodes, search
from pipeline.flows.screenshots.graph.models import ENTITIES, NODES, THREADS
from pipeline.flows.screenshots.graph.nodes import Content
from pipeline.flows.screenshots.graph.search import QueryVector
from pipeline.flows.screenshots.models import BATCHES, REJECTIONS, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.schemas import EntityMention
from pipeline.flows.screenshots.scopes import FLOW
from pipeline.flows.screenshots.search import find
from pipeline.flows.screenshots.states import Origin
from pipeline.flows.screenshots.views import Progress
from pipeline.flows.screenshots.work import embedding, expansion
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text
from tests.integration.screenshots.conftest import BEGIN, ME, Draft, Evidence, Hand, as_expansion, draft

pytestmark = pytest.mark.both_databases


@pytest.fixture
def titles(context: Context, hand: Hand) -> Any:
    batch, shots = hand.batch(app="Visual Studio Code")
    evidence = {shots[2]: Evidence("Traceback: KeyError 'invoice_total' in billing.py", app_guess="Terminal")}
    drafts = [
        draft("修复数据库连接池泄漏", shots[:1], summary="在 PostgreSQL 中排查连接"),
        draft("Review of invoices", shots[1:2], summary="Q3 numbers, with Ann", at=BEGIN + timedelta(hours=2)),
        draft("Debugging", shots[2:3], summary="a failing job"),
        draft("写周报", shots[3:4], summary="日本語のメモ"),
    ]
    node_ids = hand.analyse(batch, drafts, evidence)

    def find(words: str, **options: Any) -> list[str]:
        result = search.search(context, words, **options)
        assert {hit.node.id for hit in result.hits} <= set(node_ids)
        return [hit.node.title for hit in result.hits]

    return find


FOUND: dict[str, str | None] = {
    "数据库": "修复数据库连接池泄漏",
    "连接": "修复数据库连接池泄漏",
    "漏": "修复数据库连接池泄漏",
    "库": "修复数据库连接池泄漏",
    "postgresql连接": None,
    "postgresql 排查": "修复数据库连接池泄漏",
    "ＰｏｓｔｇｒｅＳＱＬ": "修复数据库连接池泄漏",
    "invoice": "Review of invoices",
    "ann": "Review of invoices",
    "billing.py": "Debugging",
    "keyerror": "Debugging",
    "周报": "写周报",
    "日本語": "写周报",
    "库数据": None,
    "' OR \" * : ) (": None,
    "不存在": None,
    "-": None,
}
"""The first title for each query."""


def test_words_are_found_in_any_script(titles: Any) -> None:
    assert {words: next(iter(titles(words)), None) for words in FOUND} == FOUND


def test_a_title_counts_more_than_the_text_of_the_screen(titles: Any) -> None:
    assert titles("invoice") == ["Review of invoices", "Debugging"]


def test_a_hit_names_its_frame_and_has_an_excerpt(context: Context, titles: Any) -> None:
    hit = find(context, "keyerror").hits[0]
    assert hit.node.title == "Debugging"
    assert hit.excerpt == "Traceback: KeyError 'invoice_total' in billing.py"
    assert hit.shot_id is not None
    assert "KeyError" in (queries.screenshot(context, hit.shot_id).ocr_text or "")
    assert (find(context, "weekly").hits, titles("weekly")) == ([], [])
    written = find(context, "周报").hits[0]
    assert (written.excerpt, written.shot_id) == ("", None)


def test_since_and_app_narrow_a_search(titles: Any) -> None:
    assert titles("invoice", since=BEGIN + timedelta(hours=1)) == ["Review of invoices"]
    assert titles("invoice", app="terminal") == ["Debugging"]
    assert set(titles("invoice", app="Visual Studio")) == {"Review of invoices", "Debugging"}
    assert titles("invoice", app="Firefox") == []
    assert titles("invoice", app="studio visual") == []


@pytest.mark.parametrize("few", [search._FEW, 0], ids=["few pass", "many pass"])
def test_filters_apply_to_hits_by_vectors(
    context: Context, titles: Any, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """Few nodes pass the filter, and all are compared; or many pass, and some are near."""
    monkeypatch.setattr(search, "_FEW", few)
    wanted = embedding.claim(context, ME)
    assert wanted is not None
    embedding.settle(context, wanted, [[1.0, 0.1 * number] for number in range(len(wanted.rows))])
    space = embedding.space_of(context.settings)

    def near(**options: Any) -> set[str]:
        return set(titles("zzz", vector=QueryVector(space, [1.0, 0.0]), **options))

    assert len(near()) == 4
    assert near(since=BEGIN + timedelta(hours=1)) == {"Review of invoices"}
    assert near(app="terminal") == {"Debugging"}
    assert near(app="Visual", since=BEGIN + timedelta(hours=1)) == {"Review of invoices"}
    assert near(app="terminal", since=BEGIN + timedelta(hours=1)) == set()
    assert near(app="Firefox") == near(app="-") == set()


def test_an_empty_query_is_refused(titles: Any) -> None:
    with pytest.raises(UserError):
        titles("  ")


def test_text_and_vectors_are_fused_and_the_result_counts_indexed_rows(
    context: Context, hand: Hand, titles: Any
) -> None:
    near = {"写周报": [1.0, 0.0], "Debugging": [0.9, 0.1], "Review of invoices": [-1.0, 0.0]}
    while portion := embedding.claim(context, ME, 1):
        title = portion.texts[0].split("\n")[0]
        if title in near:
            assert embedding.settle(context, portion, [near[title]]) == 1
        else:
            embedding.fail(context, portion, UnitError("too odd", kind=ErrorKind.PERMANENT))
    hand.add()
    query = QueryVector(embedding.space_of(context.settings), [1.0, 0.0])
    result = search.search(context, "failing invoice", vector=query)
    assert [hit.node.title for hit in result.hits] == ["Debugging", "写周报", "Review of invoices"]
    assert (result.hits[0].text_rank, result.hits[0].vector_rank) == (1, 2)
    assert result.screenshots == Progress(5, 1, 0)
    assert result.vectors == Progress(3, 0, 1)
    assert titles("failing", vector=query, app="terminal") == ["Debugging"]


def test_a_search_finds_a_merged_node_in_its_target(context: Context, hand: Hand) -> None:
    batch, shots = hand.batch()
    hand.analyse(batch, [draft("apples", shots[:1], thread="t"), draft("pears", shots[1:2], thread="t")])
    hand.merge_all()
    assert [hit.node.title for hit in search.search(context, "pears").hits] == ["apples + pears"]


def test_a_timeline_by_hour_and_thread(context: Context, titles: Any) -> None:
    hours = queries.timeline(context)
    assert [(hour.begins_at.hour, len(hour.nodes)) for hour in hours] == [(9, 1)] * 3 + [(11, 1)]
    assert hours[-1].thread_title == "Review of invoices"
    assert len(queries.timeline(context, thread=hours[0].thread_id or "")) == 1
    assert queries.timeline(context, until=BEGIN) == []


def everything(context: Context) -> str:
    """Return all text of the database except the schema."""
    tables = [SHOTS, REJECTIONS, BATCHES, SHARDS, NODES, ENTITIES, THREADS, AiCall.__table__]
    with context.db.read() as session:
        texts = [str(tuple(row)) for table in tables for row in session.execute(select(table))]
        texts += [str(tuple(row)) for row in session.execute(text("SELECT * FROM screenshot_fts"))]
    return " ".join(texts).casefold()


def secret_and_plain(context: Context, hand: Hand) -> tuple[int, int]:
    """Make a node with a secret node merged into it from another batch an hour later."""
    batch, shots = hand.batch(ts=BEGIN)
    (plain,) = hand.analyse(batch, [draft("plain", shots)])
    hand.merge_all()
    thread = queries.show(context, plain).node.thread_id
    later = BEGIN + timedelta(hours=1)
    batch, shots = hand.batch(ts=later)
    content = Content("secret", "secret summary", ("secret",), (EntityMention(name="Secret Person"),))
    trace = {
        "flow": FLOW,
        "scope_id": str(batch),
        "unit": "1",
        "capability": "vision",
        "operation": "o",
        "provider": "p",
        "model": "m",
        "status": "ok",
        "preview": "secret",
        "created_at": later,
    }
    with context.db.transaction() as session:
        traces.record(session, trace)
    drafts = [Draft("event", content, later, shots, thread)]
    (secret,) = hand.analyse(batch, drafts, {shots[0]: Evidence("secret words")})
    hand.merge_all()
    return plain, secret


def test_deleting_a_range_leaves_none_of_its_words(context: Context, hand: Hand) -> None:
    plain, secret = secret_and_plain(context, hand)
    hand.batch(ts=BEGIN + timedelta(hours=1, minutes=10))  # its history contains the secret, and it is not analysed yet
    wanted = embedding.claim(context, ME)
    assert wanted is not None
    embedding.settle(context, wanted, [[1.0]] * len(wanted.rows))
    assert "secret" in everything(context)
    middle = BEGIN + timedelta(minutes=30)
    done = deletion.forget(context, middle, middle + timedelta(minutes=35))
    assert (done.screenshots, done.nodes, done.restored) == (5, 1, 1)
    assert "secret" not in everything(context)
    assert len(list(context.settings.screenshot_dir.iterdir())) == 10
    node = queries.show(context, plain).node
    assert (node.title, node.status, node.merged_from_ids) == ("plain", "pending", [])
    with pytest.raises(UserError):
        queries.show(context, secret)
    assert hand.merge_all() == 1
    assert [hit.node.title for hit in search.search(context, "plain").hits] == ["plain"]
    repeated = deletion.forget(context, middle, middle + timedelta(minutes=35))
    assert repeated == deletion.Forgotten()


def test_deleting_the_range_of_a_target_restores_its_merged_nodes(context: Context, hand: Hand) -> None:
    _, other = secret_and_plain(context, hand)
    done = deletion.forget(context, BEGIN, BEGIN + timedelta(minutes=1))
    assert (done.nodes, done.restored) == (1, 1)
    assert "plain" not in everything(context)
    detail = queries.show(context, other)
    assert (detail.node.id, detail.node.title, len(detail.screenshots)) == (other, "secret", 5)
    assert detail.thread is not None
    assert detail.thread.title == "secret"


def test_deletion_breaks_up_a_running_batch_and_the_rest_of_its_frames_are_batched_anew(
    context: Context, hand: Hand
) -> None:
    batch, shots = hand.batch(ts=BEGIN)
    hand.analyse_shards(batch)
    unit = expansion.claim(context, batch, ME)
    assert unit is not None
    deletion.forget(context, BEGIN, BEGIN + timedelta(seconds=2))
    late = as_expansion(batch, shots, [draft("late", shots)])
    assert expansion.settle(context, unit, late, Origin.MODEL) is None
    remaining = [queries.screenshot(context, shot) for shot in shots[2:]]
    assert [(row.status, row.batch_id) for row in remaining] == [("pending", None)] * 3
    with pytest.raises(UserError):
        deletion.forget(context, BEGIN, BEGIN)


def test_deleting_a_range_deletes_its_rejections(context: Context, hand: Hand) -> None:
    hand.add("hash:" + "0" * 64, ts=BEGIN - timedelta(hours=1))
    hand.add("hash:" + "0" * 64, ts=BEGIN)
    assert len(queries.rejections(context)) == 1
    deletion.forget(context, BEGIN, BEGIN + timedelta(seconds=1))
    assert queries.rejections(context) == []


def test_very_long_words_on_screens_and_in_queries_break_nothing(context: Context, hand: Hand) -> None:
    batch, _shots = hand.batch()
    (node_id,) = hand.analyse(batch, [draft("long")])
    # Thai has no blanks between words: a screen's text has few terms of maximal length.
    words = ["long", *("".join(chr(0xE01 + (number * place) % 46) for place in range(1, 65)) for number in range(8000))]
    with context.db.transaction() as session:
        nodes.FULL_TEXT.put(session, [Text(node_id, "long", "", " ".join(words))])
    assert [hit.node.id for hit in search.search(context, "long").hits] == [node_id]
    for query in ("数据" * 50_000, " ".join(["数" * 5000] * 40)):
        assert search.search(context, query).hits == []
