"""Knowledge bases on a running stack (SQLite, the embedded Redis), with a provider that takes 0.3 s a call.

`measure_items`: items/s and chunks/s beside a bare loop over the same parts. `measure_fairness`: ten equal bases, and a
small base that comes after a large one.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.suite import Figures
from benchmarks.support import (
    PROVIDER,
    BenchmarkError,
    progress,
    provider_server,
    stack,
    use_provider,
    use_settings,
    users_of,
    wait_until,
)
from pipeline.engine.transaction import Tx
from pipeline.process import get_context, new_context
from pipeline.settings import get_settings
from pipeline.storage.context import Context

LATENCY_S = 0.3
AT_ONCE = 4
PARAGRAPH = (
    "The sluice of basin {number} was inspected in section {section}. Its gate closes within {section} seconds, and "
    "the level upstream stayed {number} millimetres below the mark while the turbines were at rest. "
)


def html(number: int, sections: int) -> str:
    """Return an HTML page with a unique text."""
    parts = [
        f"<h2>Section {section}</h2>" + f"<p>{PARAGRAPH.format(number=number, section=section) * 6}</p>" * 2
        for section in range(sections)
    ]
    return (
        f"<html><head><title>Basin {number}</title></head><body><h1>Basin {number}</h1>{''.join(parts)}</body></html>"
    )


@contextmanager
def running(*, api: bool = False, **settings: str) -> Iterator[str]:
    """Run a stack and the provider; yield the provider's address."""
    with provider_server("--latency", str(LATENCY_S)) as url:
        use_provider(url, concurrency=64)
        use_settings(**{"PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": PROVIDER, **settings})
        with stack(api=api):
            yield url


def measure_items(count: int = 120) -> Figures:
    """Measure items_ratio: items a second from their addition to the last completion, of a bare loop's."""
    from tasks import knowledge

    with running(), TemporaryDirectory() as name:
        files = _files(Path(name), count + AT_ONCE, sections=8)
        bases = [knowledge.create_base(f"base {number}") for number in range(AT_ONCE)]
        progress("warming up: processes that read, and connections")
        for base, path in zip(bases, files, strict=False):
            knowledge.add_files(base.id, [path])
        _wait(bases, 60)
        bare_s = _bare_loop(Path(name), files[AT_ONCE:])
        progress(f"{count} items of {files[-1].stat().st_size // 1000} kB, {bare_s:.0f} s in a bare loop")
        started = time.monotonic()
        for number, base in enumerate(bases):
            added = knowledge.add_files(base.id, files[AT_ONCE + number :: AT_ONCE])
            if added.failed:
                raise BenchmarkError(f"not added: {added.failed[:3]}")
        _wait(bases, 200)
        took_s = time.monotonic() - started
        chunks = sum(item.chunk_count for base in bases for item in knowledge.items(base.id, limit=5000))
    return {
        "items_ratio": round(bare_s / took_s, 2),
        "items/s, Penstock": round(count / took_s, 1),
        "items/s, bare loop of four threads": round(count / bare_s, 1),
        "chunks/s, Penstock": round(chunks / took_s),
    }


def measure_fairness(bases: int = 10, each: int = 12, large: int = 500) -> Figures:
    """Measure jain and small_base_ratio: how fairly bases share the workers, by the order in which items start."""
    from pipeline.flows.knowledge import intake, queries
    from pipeline.flows.knowledge.states import ItemType
    from tasks import knowledge

    with running():
        progress("warming up")
        first = knowledge.create_base("first")
        knowledge.add_notes(first.id, ["one", "two", "three", "four"])
        _wait([first], 60)
        progress(f"{bases} bases of {each} notes each")
        equal = [knowledge.create_base(f"equal {number}") for number in range(bases)]
        sources = [knowledge.Source(ItemType.NOTE, text=f"Note {number}.") for number in range(each)]
        for base in equal:
            intake.add(get_context(), base.id, sources)  # without a message: all bases start together
        knowledge.add_notes(first.id, ["five"])
        _wait(equal, 120)
        ids = [base.id for base in equal]
        jain_started, completed = _lowest_jain(ids, "started_at"), _lowest_jain(ids, "finished_at")
        alone_s = _small_base("alone")
        progress(f"5 notes beside {large}")
        huge = knowledge.create_base("huge")
        knowledge.add_notes(huge.id, [f"Note {number} of many." for number in range(large)])
        time.sleep(2)
        beside_s = _small_base("beside")
        remaining = large - queries.counts(get_context(), [huge.id])[huge.id].get("completed", 0)
    if not remaining:
        raise BenchmarkError("the large base was done before the small one, so it did not delay the small one")
    return {
        "jain": round(jain_started, 3),
        "small_base_ratio": round(beside_s / alone_s, 2),
        "Jain index of items completed": round(completed, 3),
        "5 notes alone, s": round(alone_s, 2),
        "the same beside the large base, s": round(beside_s, 2),
        "items that the large base still had": remaining,
    }


def measure_memory(count: int = 2000) -> Figures:
    """Measure the growth of the workers' memory while they embed notes on this machine, and the notes a second."""
    from tasks import knowledge

    with running(PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER=""):
        bases = [knowledge.create_base(f"base {number}") for number in range(AT_ONCE)]
        for number, base in enumerate(bases):
            knowledge.add_notes(base.id, [f"Warm note {number} {each}." for each in range(25)])
        _wait(bases, 120)
        before_mb = _workers_mb()
        started = time.monotonic()
        for number, base in enumerate(bases):
            knowledge.add_notes(base.id, [f"Note {number} {each}." for each in range(count // AT_ONCE)])
        _wait(bases, 250)
        took_s, after_mb = time.monotonic() - started, _workers_mb()
    return {
        "workers' memory after 100 notes, MB": round(before_mb),
        f"the same after {count} more, MB": round(after_mb),
        "notes/s, with lexical vectors": round(count / took_s, 1),
    }


def _workers_mb() -> float:
    workers = [worker for worker in users_of(get_settings().data_dir) if "redis" not in worker.name()]
    return sum(worker.memory_full_info().uss for worker in workers) / 1e6


def _small_base(name: str) -> float:
    """Add five items to a new base; return the seconds until the last is completed."""
    from tasks import knowledge

    base = knowledge.create_base(name)
    started = time.monotonic()
    knowledge.add_notes(base.id, [f"Small note {number} of {name}." for number in range(5)])
    _wait([base], 120)
    return time.monotonic() - started


def _lowest_jain(base_ids: Sequence[str], moment: str) -> float:
    """Return the lowest Jain index over the items of each base that have started (`started_at`) or completed
    (`finished_at`), from the moment when each base has had three items until the first base has had all.

    Earlier, whole items are too coarse: if one base has had two items and nine bases one, the index is 0.93.
    """
    from sqlalchemy import select

    from pipeline.flows.knowledge.models import ITEMS

    query = select(ITEMS.c.base_id).where(ITEMS.c.base_id.in_(base_ids)).order_by(ITEMS.c[moment], ITEMS.c.id)
    with get_context().db.read() as session:
        order = list(session.execute(query).scalars())
    all_of_one = len(order) // len(base_ids)
    served = dict.fromkeys(base_ids, 0)
    lowest = 1.0
    for base_id in order:
        served[base_id] += 1
        counts = list(served.values())
        if min(counts) >= 3 and max(counts) < all_of_one:
            lowest = min(lowest, sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)))
    return lowest


def _files(folder: Path, count: int, sections: int) -> list[Path]:
    paths = []
    for number in range(count):
        path = folder / f"page-{number}.html"
        path.write_text(html(number, sections))
        paths.append(path)
    return paths


def _wait(bases: Sequence[Any], timeout_s: float) -> None:
    from pipeline.flows.knowledge import queries

    ids = [base.id for base in bases]

    def done() -> bool:
        counted = queries.counts(get_context(), ids)
        failed = sum(states.get("failed", 0) for states in counted.values())
        if failed:
            raise BenchmarkError(f"{failed} items failed")
        return all(set(states) == {"completed"} for states in counted.values())

    wait_until("all items", done, timeout_s, every_s=0.1)


def _bare_loop(folder: Path, files: Sequence[Path]) -> float:
    """Return the seconds that four threads take with the same parts, without a queue, fairness or recovery."""
    from pipeline.flows.knowledge.settings import own
    from pipeline.flows.knowledge.work.content import limits_of
    from pipeline.providers import registry
    from pipeline.reading.text.chunks import split
    from pipeline.reading.text.text_files import read_file
    from pipeline.storage.schema import migrate

    settings = get_settings().model_copy(update={"data_dir": folder, "database_url": ""})
    context, own_settings = new_context(settings), own(settings)
    migrate(context.db)
    maker = registry.embeddings(settings, PROVIDER)
    base_id = _base_row(context)

    def add_file(path: Path) -> None:
        reading = read_file(path, path.name, limits_of(own_settings, settings.reading), lambda: True)
        chunks = split(reading, own_settings.chunk_tokens, own_settings.chunk_overlap)
        texts = [chunk.text for chunk in chunks]
        embedded = [
            vector
            for start in range(0, len(texts), own_settings.batch_size)
            for vector in maker.embed(texts[start : start + own_settings.batch_size]).vectors
        ]
        _write(context, base_id, path.name, chunks, embedded)

    add_file(files[0])
    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(add_file, files))
    took_s = time.monotonic() - started
    context.db.dispose()
    return took_s


def _base_row(context: Context) -> str:
    from tests.support.knowledge import add_base

    return add_base(context)


def _write(context: Context, base_id: str, name: str, chunks: Sequence[Any], embedded: Sequence[Any]) -> None:
    """Write an item, its chunks, their texts and vectors in one transaction."""
    from sqlalchemy import insert, select

    from pipeline.flows.knowledge.models import CHUNKS, FULL_TEXT
    from pipeline.flows.knowledge.states import ItemStatus
    from pipeline.flows.knowledge.work.known import kind_of
    from pipeline.storage import vectors
    from pipeline.storage.fulltext import Text
    from tests.support.knowledge import add_item

    item_id, now = add_item(context, base_id, ItemStatus.COMPLETED, name=name), context.db.now()

    def act(session: Tx) -> None:
        rows = [
            {
                "item_id": item_id,
                "base_id": base_id,
                "generation": 1,
                "number": number,
                "batch": 0,
                "text": chunk.text,
                "heading": "[]",
                "start": chunk.start,
                "end": chunk.end,
                "digest": "",
                "created_at": now,
            }
            for number, chunk in enumerate(chunks)
        ]
        session.execute(insert(CHUNKS), rows)
        ids = session.execute(
            select(CHUNKS.c.id).where(CHUNKS.c.item_id == item_id).order_by(CHUNKS.c.number)
        ).scalars()
        stored = list(zip(ids, embedded, strict=True))
        vectors.upsert(session, kind_of(base_id), "bare", stored)
        texts = [
            Text(chunk_id, head=name, apps=base_id, body=chunk.text)
            for (chunk_id, _), chunk in zip(stored, chunks, strict=True)
        ]
        FULL_TEXT.put(session, texts)

    context.db.run(act)
