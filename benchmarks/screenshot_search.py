"""How long a search over many nodes takes: full text and vectors fused, in one process and in a new one.

A database is filled and asked some hundred different things: common and rare words, English and Chinese, with and
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
from pipeline.flows.screenshots.views import Found
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
    """The figures by name, `search_p95_ms` above all. Without a URL: an SQLite file, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="penstock-search-") as folder:
        context = context_for(Path(folder), database_url)
        try:
            begun = time.perf_counter()
            fill(context, nodes)
            built_s = time.perf_counter() - begun
            cold = _cold(Path(folder), database_url)
            return {**_warm(context, nodes), **cold, "recall_at_10": recall(context), "build_s": round(built_s, 1)}
        finally:
            context.db.dispose()


def context_for(folder: Path, database_url: str = "") -> Context:
    url = database_url or f"sqlite:///{folder / 'penstock.db'}"
    return new_context(Settings(data_dir=folder, database_url=url))


def fill(context: Context, count: int) -> None:
    """A database with so many analysed frames, a node for each, full text and vectors."""
    migrate(context.db)
    hashed = HashedWords()
    made = screenshot_texts.nodes(count)
    with context.db.transaction() as session:
        row = {"key": "screen:1", "active": True, "pressure": 0, "created_at": NOW, "seen_at": NOW}
        session.execute(insert(SOURCES).values(**row))
    first = 1
    while portion := list(islice(made, _PORTION)):
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
    """The lexical vectors of many texts: each word's share is computed once. The same vectors, but for rounding."""

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
            found = [(zlib.crc32(feature.encode()), weight) for feature, weight in lexical._features(word)]
            places = np.array([code % lexical.DIMS for code, _ in found])
            self._known[word] = places, np.array([w if code & 0x8000_0000 else -w for code, w in found])
        return self._known[word]


def asked(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(words, filters): three in five without a filter; else a time, short or long, an app, or both."""
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
        # Seven kinds of words, ten of filters: each meets each.
        yield words, filters[number % len(filters)]


def ask(context: Context, words: str, **filters: Any) -> Found:
    """One search as the CLI makes it: the query's vector is made here, too."""
    values = LexicalEmbeddings().embed([words]).vectors[0]
    return search.search(context, words, vector=QueryVector(MODEL, values), **filters)


def _warm(context: Context, count: int) -> Figures:
    ask(context, "warm up")
    plain: list[float] = []
    filtered: list[float] = []
    after_change: list[float] = []
    cpu: list[float] = []
    for words, filters in asked(count):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        ask(context, words, **filters)
        cpu.append((time.process_time() - cpu_begun) * 1000)
        (filtered if filters else plain).append(_ms_since(begun))
    for words in screenshot_texts.queries(40, seed=9):
        with context.db.transaction() as session:
            node = next(screenshot_texts.nodes(1, seed=len(after_change)))
            vectors.upsert(session, nodes.KIND, MODEL, [(1, HashedWords().vector(node))])
        begun = time.perf_counter()
        ask(context, words)
        after_change.append(_ms_since(begun))
    both = [*plain, *filtered]
    return {
        "search_p95_ms": _ms(both, 0.95),
        "search_median_ms": _ms(both, 0.5),
        # What it takes of the processors: on a machine that others use as well, this says more.
        "search_p95_cpu_ms": _ms(cpu, 0.95),
        "search_worst_ms": _ms(both, 1),
        "plain_p95_ms": _ms(plain, 0.95),
        "filtered_p95_ms": _ms(filtered, 0.95),
        "after_change_p95_ms": _ms(after_change, 0.95),
    }


def _cold(folder: Path, database_url: str) -> Figures:
    """The first search of a new process, without its imports; and the most memory that the process had."""
    command = [sys.executable, "-m", "benchmarks.screenshot_search", str(folder), database_url]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_COLD_LIMIT_S, check=True)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def _once(folder: Path, database_url: str) -> Figures:
    context = context_for(folder, database_url)
    before = peak_mb()
    begun = time.perf_counter()
    ask(context, "数据库 review")
    first = _ms_since(begun)
    context.db.dispose()
    return {"cold_ms": round(first, 1), "memory_mb": round(peak_mb() - before, 1)}


def recall(context: Context, queries: int = 100) -> float:
    """Share of the ten best by vector alone that is found; what scores like the tenth counts as well."""
    asked_for = screenshot_texts.queries(queries, seed=10)
    wanted = np.array(LexicalEmbeddings().embed(asked_for).vectors, np.float32)
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


def _ms_since(begun: float) -> float:
    return (time.perf_counter() - begun) * 1000


def _ms(values: Sequence[float], share: float) -> float:
    return round(percentile(values, share), 1)


if __name__ == "__main__":
    print(json.dumps(_once(Path(sys.argv[1]), sys.argv[2])))
