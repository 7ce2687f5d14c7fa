"""The cost of claims and sweeps with a million pages, and the messages that gather before a closed gate."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import mean, quantiles

from sqlalchemy import insert, text, update
from sqlalchemy.orm import Session

from benchmarks.suite import Figures
from benchmarks.support import PROVIDER, BenchmarkError, embedded_redis, progress, use_provider
from pipeline.engine import work
from pipeline.engine.claims import Owner
from pipeline.engine.metrics import queue_depths
from pipeline.engine.transaction import Tx
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.work.page import CONVERT
from pipeline.process import get_context
from pipeline.providers import queue_control
from pipeline.settings import LOCAL
from pipeline.storage.context import Context
from pipeline.storage.schema import migrate
from tests.support.many_pages import Shape, analyse, fill

QUEUE = f"vision.{PROVIDER}"
LANES = 4
SWEEP_S = 5.0


def measure_claims(claims: int = 300, long: int = 20_000, documents: int = 10_000) -> Figures:
    """Measure claim_p95_ratio and claim_late_ratio."""
    with _rows() as context:
        p95_ms = {}
        few, many = _shape(100), _shape(documents)
        fill(context.db, few)
        for number, (rows, label) in enumerate(((few, "few rows"), (many, "many rows"))):
            if rows is many:
                progress(f"{many.documents * many.pages:,} pages")
                _empty(context)
                fill(context.db, many)
            document = _document(context, f"r{number}", claims)
            progress(f"{claims} claims with {label}")
            p95_ms[label] = _p95_ms(_claim_each(context, document, claims))
        _empty(context)
        document = _document(context, "long", long)
        progress(f"the first and the last tenth of {long} pages")
        first = _claim_each(context, document, long // 10)
        _done_until(context, document, long - long // 10)
        last = _claim_each(context, document, long // 10)
    return {
        "claim_p95_ratio": round(p95_ms["many rows"] / p95_ms["few rows"], 2),
        "claim_late_ratio": round(mean(last) / mean(first), 2),
        **{f"p95 of a claim with {label}, ms": value for label, value in p95_ms.items()},
        "mean claim, first tenth, ms": round(mean(first), 2),
        "mean claim, last tenth, ms": round(mean(last), 2),
    }


def measure_sweep(sweeps: int = 7, documents: int = 10_000) -> Figures:
    """Measure sweep_ms_1m and sweeps_to_find_lost."""
    from tasks.maintenance import sweep  # its import reads the settings

    with _rows() as context:
        shape = _shape(documents)
        progress(f"{documents * shape.pages:,} pages, of which {shape.waiting * shape.pages:,} wait at a closed gate")
        fill(context.db, shape)
        queue_control.pause(context, QUEUE, None)
        took, sent = [], []
        for _ in range(sweeps):
            took.append(_timed(lambda: sent.append(sweep())))
            _forget_tick(context)
        if any(sent):
            raise BenchmarkError(f"a sweep sent {sum(sent)} messages where nothing was runnable")
        _document(context, "lost", 5)
        needed = _sweeps_until_sent(context, sweep)
    return {
        "sweep_ms_1m": round(sorted(took)[len(took) // 2], 1),
        "sweeps_to_find_lost": needed,
        "sweeps, ms": " ".join(f"{ms:.0f}" for ms in took),
    }


def _sweeps_until_sent(context: Context, sweep: Callable[[], int]) -> int:
    """Count sweeps until the one runnable document, whose message is lost, has a message."""
    from tasks.documents.canvas import TASKS

    TASKS.launch("lost")
    context.redis.delete("cpu")
    for number in range(1, 10):
        time.sleep(SWEEP_S)
        _forget_tick(context)
        sweep()
        if queue_depths(context.redis, ["cpu"])["cpu"]:
            return number
    raise BenchmarkError("nine sweeps did not find the document whose message was lost")


def measure_messages(documents: int = 100, sweeps: int = 120) -> Figures:
    """Measure messages_max: the most messages during ten minutes of sweeps before a closed gate."""
    from tasks.documents.canvas import TASKS
    from tasks.maintenance import sweep

    with _rows() as context:
        names = [f"m{number}" for number in range(documents)]
        for name in names:
            _document(context, name, 20, PROVIDER)
        TASKS.launch(*names)
        queue_control.pause(context, QUEUE, None)
        depths = [queue_depths(context.redis, [QUEUE])[QUEUE]]
        progress(f"{sweeps} sweeps of a closed gate")
        for _ in range(sweeps):
            _pass(context, SWEEP_S)
            sweep()
            depths.append(queue_depths(context.redis, [QUEUE])[QUEUE])
    return {
        "messages_max": max(depths),
        "lanes of all documents": documents * LANES,
        "before the first sweep": depths[0],
    }


@contextmanager
def _rows() -> Iterator[Context]:
    """Yield a database and a Redis without workers, and a provider with a gate."""
    use_provider("http://127.0.0.1:9", concurrency=LANES)
    with embedded_redis():
        context = get_context()
        migrate(context.db)
        yield context


def _shape(documents: int) -> Shape:
    """Describe this many documents. Three in ten wait before the provider's gate."""
    return Shape(documents, waiting=documents * 3 // 10, provider=PROVIDER)


def _document(context: Context, name: str, pages: int, provider: str = LOCAL) -> str:
    """Insert a document whose pages all wait for their conversion."""
    now = context.db.now()
    row = {
        "id": name,
        "filename": "a.pdf",
        "type": "pdf",
        "provider": provider,
        "pages": pages,
        "submission_key": name,
        "status": DocumentStatus.PROCESSING,
        "created_at": now,
        "updated_at": now,
    }
    columns = {
        "document_id": name,
        "status": PageStatus.PENDING,
        "provider": provider,
        "created_at": now,
        "updated_at": now,
    }
    rows = [{**columns, "page": page, "page_source": page} for page in range(1, pages + 1)]

    def store(session: Session) -> None:
        session.execute(insert(DOCUMENTS).values(**row))
        session.connection().execute(insert(PAGES), rows)

    context.db.run(store)
    analyse(context.db)
    return name


def _claim_each(context: Context, document: str, count: int) -> list[float]:
    """Claim this many pages, each in a transaction of its own; return the milliseconds of each claim."""
    owner = Owner("benchmark:1:a", "message")

    def claim(tx: Tx) -> None:
        if len(work.claim(tx, CONVERT, CONVERT.lock(tx, document), owner, PAGES.c.provider == LOCAL)) != 1:
            raise BenchmarkError("there is nothing to claim")

    return [_timed(lambda: context.db.run(claim)) for _ in range(count)]


def _done_until(context: Context, document: str, page: int) -> None:
    done = update(PAGES).where(PAGES.c.document_id == document, PAGES.c.page <= page)
    context.db.run(lambda session: session.execute(done.values(status=PageStatus.COMPLETED, claim_id=None)))


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


def _p95_ms(values: list[float]) -> float:
    return round(quantiles(values, n=20)[-1], 3)


def _empty(context: Context) -> None:
    def act(session: Session) -> None:
        if context.db.is_sqlite:
            session.execute(PAGES.delete())
            session.execute(DOCUMENTS.delete())
        else:
            session.execute(text("TRUNCATE pages, documents CASCADE"))

    context.db.run(act)


def _forget_tick(context: Context) -> None:
    """Let the next sweep begin at once."""
    for key in context.redis.scan_iter("penstock:leases:*tick*"):
        context.redis.delete(key)


def _pass(context: Context, seconds: float) -> None:
    """Let this much time pass for the places that wait and for the sweep's tick."""
    _forget_tick(context)
    with context.redis.pipeline(transaction=False) as pipe:
        for key in context.redis.scan_iter("penstock:places:*:*"):
            for field, place in context.redis.hgetall(key).items():
                kind, mark, since, priority = str(place).split()
                pipe.hset(key, field, f"{kind} {mark} {int(since) - int(seconds * 1000)} {priority}")
        pipe.execute()
