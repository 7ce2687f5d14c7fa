"""The time of a search over knowledge bases: words and vectors fused, in one large base and over 200 small ones.

Each measurement fills a database and runs a hundred different queries: common and rare words, questions, English and
Chinese, with and without filters, after changes, and as the first query of a new process.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks import screenshot_texts
from benchmarks.screenshot_search import HashedWords, context_for
from benchmarks.screenshot_texts import MadeUp
from benchmarks.speed import peak_mb
from benchmarks.suite import Figures
from benchmarks.support import ROOT, percentile
from pipeline.flows.knowledge.models import BASES, CHUNKS, FULL_TEXT, ITEMS
from pipeline.flows.knowledge.search import search
from pipeline.flows.knowledge.work.known import kind_of
from pipeline.providers.lexical import LexicalEmbeddings
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.fulltext import Text
from pipeline.storage.schema import migrate

CHUNKS_COUNT, BASES_COUNT = 100_000, 200
SPACE = f"{LexicalEmbeddings.name}:{LexicalEmbeddings.model}"
CHUNKS_AN_ITEM = 25
_PORTION = 2000
_QUERIES, _CHANGES = 100, 20
_COLD_LIMIT_S = 60
NOW = datetime(2026, 6, 1, tzinfo=UTC)
_QUESTIONS = ("how is the {} changed", "what does the report say about {} and {}", "who is responsible for the {}")


def measure_one_base(chunks: int = CHUNKS_COUNT, database_url: str = "") -> Figures:
    """Measure `search_p95_ms` and others: one base with this many chunks, alone in its database."""
    figures = _measured([chunks], 1, database_url)
    return {f"search_{name}": value for name, value in figures.items()}


def measure_many_bases(bases: int = BASES_COUNT, chunks: int = CHUNKS_COUNT, database_url: str = "") -> Figures:
    """Measure `search_200_bases_p95_ms` and others: `bases` bases with `chunks` chunks in all, then three in four."""
    figures = _measured([chunks // bases] * bases, bases, database_url)
    return {f"search_{bases}_bases_{name}": value for name, value in figures.items()}


def _measured(sizes: Sequence[int], bases: int, database_url: str) -> Figures:
    with tempfile.TemporaryDirectory(prefix="penstock-kb-search-") as folder, _context(folder, database_url) as context:
        started = time.perf_counter()
        fill(context, sizes)
        built_s = round(time.perf_counter() - started, 1)
        ids = [base_id(number) for number in range(bases)]
        return {**_warm(context, ids), **_cold(folder, database_url, bases), "build_s": built_s}


@contextmanager
def _context(folder: str, database_url: str) -> Iterator[Context]:
    context = context_for(Path(folder), database_url)
    try:
        yield context
    finally:
        context.db.dispose()


def base_id(number: int) -> str:
    return f"{number:016x}"


def fill(context: Context, sizes: Sequence[int]) -> None:
    """Publish a base for each of these numbers of chunks, with full text and lexical vectors."""
    migrate(context.db)
    hashed, made_up, first = HashedWords(), screenshot_texts.nodes(sum(sizes)), 1
    for number, size in enumerate(sizes):
        base = {"id": base_id(number), "name": f"base {number}", "provider": "local", "chunk_tokens": 512}
        row = {**base, "chunk_overlap": 64, "created_at": NOW, "updated_at": NOW}
        context.db.run(lambda session, row=row: session.execute(insert(BASES).values(**row)))  # type: ignore[misc]
        remaining = size
        while remaining and (portion := list(islice(made_up, min(remaining, _PORTION)))):
            _publish(context, base_id(number), range(first, first + len(portion)), portion, hashed)
            first += len(portion)
            remaining -= len(portion)


def _publish(context: Context, base: str, ids: range, portion: Sequence[MadeUp], hashed: HashedWords) -> None:
    """Publish items of `CHUNKS_AN_ITEM` chunks each; every fifth is a web page."""
    items, chunks, texts = [], [], []
    for at, (chunk_id, node) in enumerate(zip(ids, portion, strict=True)):
        number = at % CHUNKS_AN_ITEM
        item_id = f"{chunk_id - number:016x}"
        if number == 0:
            kind = "url" if at // CHUNKS_AN_ITEM % 5 == 0 else "file"
            items.append(
                {
                    "id": item_id,
                    "base_id": base,
                    "position": chunk_id,
                    "type": kind,
                    "status": "completed",
                    "name": node.title[:200],
                    "title": node.title[:200],
                    "source_key": item_id,
                    "generation": 1,
                    "space": SPACE,
                    "published_space": SPACE,
                    "created_at": NOW,
                    "updated_at": NOW,
                    "attempts": 0,
                }
            )
        body = f"{node.title}. {node.summary} {node.screen}"
        chunks.append(
            {
                "id": chunk_id,
                "item_id": item_id,
                "base_id": base,
                "generation": 1,
                "number": number,
                "batch": 0,
                "text": body,
                "heading": json.dumps([node.title]),
                "page": number,
                "start": number * 2000,
                "end": number * 2000 + len(body),
                "digest": item_id,
                "created_at": NOW,
            }
        )
        texts.append(Text(chunk_id, head=node.title, apps=base, body=body))
    with context.db.transaction() as session:
        session.execute(insert(ITEMS), items)
        session.execute(insert(CHUNKS), chunks)
        FULL_TEXT.put(session, texts)
        vectors.upsert(session, kind_of(base), SPACE, list(zip(ids, map(hashed.vector, portion), strict=True)))


def query_filters(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (query, filters). One query in three is a question, one in five has a filter."""
    filters: Sequence[dict[str, Any]] = ({}, {}, {"types": ["url"]}, {}, {})
    for number, words in enumerate(screenshot_texts.queries(count)):
        query = words
        if number % 3 == 0:
            first, second = (words.split() * 2)[:2]
            query = _QUESTIONS[number // 3 % len(_QUESTIONS)].format(first, second)
        yield query, filters[number % len(filters)]


def _warm(context: Context, bases: Sequence[str]) -> Figures:
    took, cpu, hits = _query_times(context, bases)
    some = _query_times(context, bases[: len(bases) * 3 // 4])[0] if len(bases) > 1 else []
    after_change = []
    for number, words in enumerate(screenshot_texts.queries(_CHANGES, seed=9)):
        # A repeated read of an item replaces vectors.
        node = next(screenshot_texts.nodes(1, seed=number))
        with context.db.transaction() as session:
            kind = kind_of(bases[number % len(bases)])
            vectors.remove(session, kind, [10**9 + number - 1])
            vectors.upsert(session, kind, SPACE, [(10**9 + number, HashedWords().vector(node))])
        started = time.perf_counter()
        search(context, bases, words)
        after_change.append((time.perf_counter() - started) * 1000)
    return {
        "p95_ms": _ms(took, 0.95),
        "median_ms": _ms(took, 0.5),
        "worst_ms": _ms(took, 1),
        # CPU time says more on a machine that others use as well.
        "p95_cpu_ms": _ms(cpu, 0.95),
        "after_change_p95_ms": _ms(after_change, 0.95),
        "mean_hits": round(hits / _QUERIES, 1),
        **({"of_some_p95_ms": _ms(some, 0.95)} if some else {}),
    }


def _query_times(context: Context, bases: Sequence[str]) -> tuple[list[float], list[float], int]:
    """Return the milliseconds of each query by the clock and of CPU time, and the number of hits."""
    search(context, bases, "warm up")
    took, cpu, hits = [], [], 0
    for words, filters in query_filters(_QUERIES):
        started, cpu_started = time.perf_counter(), time.process_time()
        hits += len(search(context, bases, words, **filters).hits)
        cpu.append((time.process_time() - cpu_started) * 1000)
        took.append((time.perf_counter() - started) * 1000)
    return took, cpu, hits


def _cold(folder: str, database_url: str, bases: int) -> Figures:
    """Measure the first search of a new process, without its imports, and its peak memory."""
    command = [sys.executable, "-m", "benchmarks.knowledge_search", folder, database_url, str(bases)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=_COLD_LIMIT_S, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _once(folder: str, database_url: str, bases: int) -> Figures:
    with _context(folder, database_url) as context:
        before, started = peak_mb(), time.perf_counter()
        search(context, [base_id(number) for number in range(bases)], "数据库 review")
        return {"cold_ms": round((time.perf_counter() - started) * 1000, 1), "memory_mb": round(peak_mb() - before, 1)}


def _ms(values: Sequence[float], share: float) -> float:
    return round(percentile(values, share), 1)


if __name__ == "__main__":
    print(json.dumps(_once(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
