"""Screens of the console over 100,000 documents: their times, the size of a first load, and the delay of a change."""

import gzip
import http.client
import random
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import insert

from benchmarks.knowledge_api import processor_s, running_api
from benchmarks.suite import Figures
from benchmarks.support import BenchmarkError, completed, percentile, progress, text_document
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.process import get_context
from pipeline.storage.context import Context
from tests.support.documents import insert_document

WORDS = ("invoice", "letter", "lease", "report", "minutes", "survey", "manual", "contract", "harbour", "ledger")
AT_ONCE = 5000
_PAGES = 120
_ASSET = re.compile(r'(?:src|href)="(/console/static/[^"]+)"')
Ask = Callable[[str], bytes]


def measure(documents: int = 100_000, rounds: int = 20, changes: int = 30) -> Figures:
    """Measure documents_100k_p95_ms, document_page_p95_ms, first_page_kb and events_lag_p95_ms."""
    from tasks import documents as flow

    with running_api() as port:
        context = get_context()
        progress(f"a document of {_PAGES} pages is converted")
        converted = completed(flow.submit(text_document("converted", _PAGES), provider="local"), 60)
        progress(f"{documents} documents")
        insert_documents(context, documents)
        begun_s = processor_s()
        lists, each = _lists(port, rounds)
        listed_s = processor_s()
        pages = _timed(
            port, [f"/console/documents/{converted.id}?page={1 + n * 7 % _PAGES}" for n in range(rounds * 4)]
        )
        paged_s = processor_s()
        sizes = {screen: _first_load(port, screen) for screen in ("/console/", "/console/documents")}
        progress("changes on a stream")
        lags = _lags(context, port, changes)
    return {
        "documents_100k_p95_ms": round(percentile(lists, 0.95) * 1000, 1),
        "document_page_p95_ms": round(percentile(pages, 0.95) * 1000, 1),
        "first_page_kb": round(max(sizes.values()) / 1000, 1),
        "events_lag_p95_ms": round(percentile(lags, 0.95) * 1000, 1),
        **{
            f"median of {filter_name}, ms": round(percentile(took, 0.5) * 1000, 1) for filter_name, took in each.items()
        },
        "CPU time of a list, of a page, ms": f"{(listed_s - begun_s) / len(lists) * 1000:.0f}, "
        f"{(paged_s - listed_s) / len(pages) * 1000:.0f}",
        "p50 page, p50 lag, ms": f"{percentile(pages, 0.5) * 1000:.1f}, {percentile(lags, 0.5) * 1000:.1f}",
        **{f"first load of {screen}, kB": round(size / 1000, 1) for screen, size in sizes.items()},
    }


def insert_documents(context: Context, count: int) -> None:
    """Insert the documents of two years, most of them completed."""
    dice, now = random.Random(7), context.db.now()
    ended = [DocumentStatus.COMPLETED] * 90 + [DocumentStatus.PARTIAL_FAILED] * 4 + [DocumentStatus.FAILED] * 6
    for first in range(0, count, AT_ONCE):
        rows = []
        for number in range(first, min(first + AT_ONCE, count)):
            at = now - timedelta(minutes=10 + number * 10)
            pages, status = dice.randint(1, 40), dice.choice(ended)
            failed = pages if status is DocumentStatus.FAILED else int(status is DocumentStatus.PARTIAL_FAILED)
            rows.append(
                {
                    "id": uuid4().hex[:16],
                    "filename": f"{dice.choice(WORDS)}-{dice.choice(WORDS)}-{number}.pdf",
                    "type": "pdf",
                    "provider": "local",
                    "status": status,
                    "pages": pages,
                    "progress": 100,
                    "completed_count": pages - failed,
                    "failed_count": failed,
                    "submission_key": uuid4().hex,
                    "size_bytes": pages * 40_000,
                    "started_at": at,
                    "finished_at": at + timedelta(seconds=pages),
                    "created_at": at,
                    "updated_at": at,
                }
            )
        with context.db.transaction() as session:
            session.execute(insert(DOCUMENTS), rows)


def _lists(port: int, rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """Return the seconds of all lists, and the same by filter."""
    queries = {
        "all": "",
        "completed": "?state=done",
        "needs you": "?state=attention",
        "a name": "?q=harbour-lease",
        "a name without documents": "?q=zanzibar",
        "needs you, with a name": "?state=attention&q=survey",
    }
    each = {
        filter_name: _timed(port, [f"/console/documents{query}"] * rounds) for filter_name, query in queries.items()
    }
    return [took for all_of in each.values() for took in all_of], each


def _timed(port: int, paths: list[str]) -> list[float]:
    """Return the seconds of each request on one connection, after one that warms up."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    took = []
    for path in [paths[0], *paths]:
        started = time.monotonic()
        _get(connection, path)
        took.append(time.monotonic() - started)
    connection.close()
    return took[1:]


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    """Return the compressed body as the server sends it."""
    connection.request("GET", path, headers={"accept": "text/html,*/*", "accept-encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise BenchmarkError(f"{path} was answered with {answer.status}: {body[:300]!r}")
    return body


def _first_load(port: int, screen: str) -> int:
    """Return the bytes of the page and of all its assets."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    page = _get(connection, screen)
    assets = dict.fromkeys(_ASSET.findall(gzip.decompress(page).decode()))
    size = len(page) + sum(len(_get(connection, path)) for path in assets)
    connection.close()
    return size


def _lags(context: Context, port: int, changes: int) -> list[float]:
    """Cancel a document; return the seconds from the commit until a stream of the list has its row."""
    from tasks import documents as flow

    ids = [insert_document(context, DocumentStatus.PAUSED, [PageStatus.PENDING] * 3) for _ in range(changes)]
    lines: list[tuple[float, str]] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/console/live?view=documents&rows={','.join(ids)}")
    answer = connection.getresponse()
    if answer.status != 200:
        raise BenchmarkError(f"the stream was answered with {answer.status}")

    def read() -> None:
        while line := answer.readline():
            lines.append((time.monotonic(), line.decode()))

    threading.Thread(target=read, daemon=True).start()
    dice, committed = random.Random(3), {}
    time.sleep(3)
    for key in ids:
        flow.cancel(key)
        committed[key] = time.monotonic()
        time.sleep(0.5 + dice.random())
    time.sleep(2)
    lags = []
    for key, at in committed.items():
        # The stream may send the row before `cancel` returns.
        shown = [when for when, line in list(lines) if f'hx-target="#d-{key}"' in line and when > at - 0.2]
        if not shown:
            raise BenchmarkError(f"the row of document {key} did not come")
        lags.append(max(0.0, shown[0] - at))
    return lags
