"""The time of a search over many nodes: full text and vectors fused, in a warm process and in a new one.

Fills a database and runs about a hundred different queries: common and rare words, English and Chinese, with and
without filters, before and between changes.
"""

import json
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, insert, select

from benchmarks import screenshot_texts
from benchmarks.screenshot_texts import BEGIN, MadeUp
from benchmarks.speed import peak_mb
from benchmarks.suite import Figures
from benchmarks.support import ROOT, percentile
from pipeline.flows.screenshots.graph import nodes, search
from pipeline.flows.screenshots.graph.models import LINKS, NODES
from pipeline.flows.screenshots.graph.nodes import Content
from pipeline.flows.screenshots.graph.search import QueryVector
from pipeline.flows.screenshots.models import SHOTS, SOURCES
from pipeline.flows.screenshots.views import SearchResult
from pipeline.process import new_context
from pipeline.providers import lexical
from pipeline.providers.lexical import LexicalEmbeddings
from pipeline.settings import Settings
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text
from pipeline.storage.schema import migrate
from pipeline.storage.vectors import nearest
from pipeline.storage.vectors.codes import Floats
from pipeline.storage.vectors.models import VECTORS

NODES_COUNT = 100_000
QUERIES = 280
MODEL = LexicalEmbeddings.model
_PORTION = 2000
_COLD_LIMIT_S = 60
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def measure_search(nodes: int = NODES_COUNT, database_url: str = "") -> Figures:
    """Measure `search_p95_ms` and the figures behind it, by default with a temporary SQLite file."""
    with tempfile.TemporaryDirectory(prefix="penstock-search-") as folder:
        context = context_for(Path(folder), database_url)
        try:
            started = time.perf_counter()
            fill(context, nodes)
            built_s = time.perf_counter() - started
            cold = _cold(Path(folder), database_url)
            return {**_warm(context, nodes), **cold, "recall_at_10": recall(context), "build_s": round(built_s, 1)}
        finally:
            context.db.dispose()


def context_for(folder: Path, database_url: str = "") -> Context:
    url = database_url or f"sqlite:///{folder / 'penstock.db'}"
    return new_context(Settings(data_dir=folder, database_url=url))


def fill(context: Context, count: int) -> None:
    """Insert this many analysed frames with a node for each, its full text and its vector."""
    migrate(context.db)
    hashed = HashedWords()
    made_up = screenshot_texts.nodes(count)
    with context.db.transaction() as session:
        row = {"key": "screen:1", "active": True, "pressure": 0, "created_at": NOW, "seen_at": NOW}
        session.execute(insert(SOURCES).values(**row))
    first = 1
    while portion := list(islice(made_up, _PORTION)):
        ids = range(first, first + len(portion))
        first += len(portion)
        with context.db.transaction() as session:
            session.execute(insert(SHOTS), [_shot(*pair) for pair in zip(ids, portion, strict=True)])
            session.execute(insert(NODES), [_node(*pair) for pair in zip(ids, portion, strict=True)])
            session.execute(insert(LINKS), [{"origin_id": i, "shot_id": i, "node_id": i} for i in ids])
            nodes.FULL_TEXT.put(session, [_text(*pair) for pair in zip(ids, portion, strict=True)])
            rows = zip(ids, map(hashed.vector, portion), strict=True)
            vectors.upsert(session, nodes.KIND, MODEL, rows)


def _shot(number: int, node: MadeUp) -> dict[str, Any]:
    return {
        "id": number,
        "source_key": "screen:1",
        "ts": node.at,
        "file": f"{number}.png",
        "sha256": f"{number:064x}",
        "phash": f"{number:064x}",
        "size_bytes": 1,
        "app": node.app,
        "window_title": node.window,
        "status": "succeeded",
        "ocr_text": node.screen,
        "ui_text_snippets": "[]",
        "detected_entities": "[]",
        "app_guess": "",
        "storage_state": "stored",
        "created_at": NOW,
        "updated_at": NOW,
    }


def _node(number: int, node: MadeUp) -> dict[str, Any]:
    content = Content(node.title, node.summary, node.keywords)
    return {
        "id": number,
        "kind": "event",
        "origin_key": f"made-up:{number}",
        "event_time": node.at,
        "made_by": "model",
        "own": nodes.dump(content),
        "version": 1,
        "status": "succeeded",
        "merged_from_ids": "[]",
        "attempts": 0,
        "created_at": NOW,
        "updated_at": NOW,
        **nodes.columns(content),
    }


def _text(number: int, node: MadeUp) -> Text:
    head = " \n".join([node.title, node.summary, *node.keywords])
    return Text(number, head, node.app, f"{node.window} \n{node.screen}")


class HashedWords:
    """Lexical vectors of many texts: computes each word's share once. The vectors are the same but for rounding."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    def vector(self, node: MadeUp) -> "Floats":
        text = "\n".join([node.title, node.summary, ", ".join(node.keywords)]).casefold()
        places, weights = [], []
        for word, count in Counter(lexical._WORD.findall(text)).items():
            own = self._shares(word)
            places.append(own[0])
            weights.append(own[1] * (1 + np.log(count)))
        summed = np.bincount(np.concatenate(places), np.concatenate(weights), lexical.DIMS)
        return np.asarray(summed / np.linalg.norm(summed), np.float32)

    def _shares(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if word not in self._known:
            weights = [(zlib.crc32(feature.encode()), weight) for feature, weight in lexical._features(word)]
            places = np.array([code % lexical.DIMS for code, _ in weights])
            self._known[word] = places, np.array([w if code & 0x8000_0000 else -w for code, w in weights])
        return self._known[word]


def query_filters(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (query, filters). Three in five have no filter; others have a short or long time, an app, or both."""
    newest = BEGIN + timedelta(minutes=count)
    day, week, month = ({"since": newest - timedelta(days=days)} for days in (1, 7, 30))
    filters: Sequence[dict[str, Any]] = (
        {},
        {},
        day,
        {},
        {"app": "Chrome"},
        {},
        month,
        {},
        {"app": "outlook"},
        {**week, "app": "微信"},
    )
    for number, words in enumerate(screenshot_texts.queries(QUERIES)):
        # Seven kinds of queries and ten of filters: each kind meets each.
        yield words, filters[number % len(filters)]


def ask(context: Context, words: str, **filters: Any) -> SearchResult:
    """Search once as the CLI does, including the vector of the query."""
    values = LexicalEmbeddings().embed([words]).vectors[0]
    return search.search(context, words, vector=QueryVector(MODEL, values), **filters)


def _warm(context: Context, count: int) -> Figures:
    ask(context, "warm up")
    plain: list[float] = []
    filtered: list[float] = []
    after_change: list[float] = []
    cpu: list[float] = []
    for words, filters in query_filters(count):
        started, cpu_started = time.perf_counter(), time.process_time()
        ask(context, words, **filters)
        cpu.append((time.process_time() - cpu_started) * 1000)
        (filtered if filters else plain).append(_ms_since(started))
    for words in screenshot_texts.queries(40, seed=9):
        with context.db.transaction() as session:
            node = next(screenshot_texts.nodes(1, seed=len(after_change)))
            vectors.upsert(session, nodes.KIND, MODEL, [(1, HashedWords().vector(node))])
        started = time.perf_counter()
        ask(context, words)
        after_change.append(_ms_since(started))
    both = [*plain, *filtered]
    return {
        "search_p95_ms": _ms(both, 0.95),
        "search_median_ms": _ms(both, 0.5),
        # CPU time says more on a machine that others use as well.
        "search_p95_cpu_ms": _ms(cpu, 0.95),
        "search_worst_ms": _ms(both, 1),
        "plain_p95_ms": _ms(plain, 0.95),
        "filtered_p95_ms": _ms(filtered, 0.95),
        "after_change_p95_ms": _ms(after_change, 0.95),
    }


def _cold(folder: Path, database_url: str) -> Figures:
    """Measure the first search of a new process, without its imports, and its peak memory."""
    command = [sys.executable, "-m", "benchmarks.screenshot_search", str(folder), database_url]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_COLD_LIMIT_S, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _once(folder: Path, database_url: str) -> Figures:
    context = context_for(folder, database_url)
    before = peak_mb()
    started = time.perf_counter()
    ask(context, "数据库 review")
    first = _ms_since(started)
    context.db.dispose()
    return {"cold_ms": round(first, 1), "memory_mb": round(peak_mb() - before, 1)}


def recall(context: Context, queries: int = 100) -> float:
    """Return the share of the ten best hits by vector alone that the search returns. Ties with the tenth count."""
    texts = screenshot_texts.queries(queries, seed=10)
    wanted = np.array(LexicalEmbeddings().embed(texts).vectors, np.float32)
    with context.db.read() as session:
        query = select(VECTORS.c.data).where(VECTORS.c.kind == nodes.KIND).execution_options(yield_per=_PORTION)
        exact = [
            np.frombuffer(b"".join(rows), "<f4").reshape(len(rows), -1) @ wanted.T
            for rows in session.execute(query).scalars().partitions()
        ]
        tenth = np.sort(np.concatenate(exact), axis=0)[-10]
        shares = []
        for vector, least in zip(wanted, tenth, strict=True):
            hits = nearest.search(session, nodes.KIND, MODEL, vector, 10)
            shares.append(sum(hit.score >= least - 1e-5 for hit in hits) / 10)
        assert session.execute(select(func.count()).select_from(VECTORS)).scalar_one() == sum(map(len, exact))
    return round(float(np.mean(shares)), 4)


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def _ms(values: Sequence[float], share: float) -> float:
    return round(percentile(values, share), 1)


if __name__ == "__main__":
    print(json.dumps(_once(Path(sys.argv[1]), sys.argv[2])))
