"""The REST API of a running stack: reads of an item's status, alone and beside busy workers, and a large upload.

Readers are processes of their own with open connections, so that they use as little of the two cores as possible.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.knowledge_flow import AT_ONCE, html, running
from benchmarks.suite import Figures
from benchmarks.support import BenchmarkError, is_ready, percentile, progress, users_of, wait_until
from pipeline.settings import get_settings
from tests.support.redis_server import free_port

READERS = 4
BUSY_RATE = 50
"""Reads a second while workers are busy."""


def measure_reads(seconds: float = 8.0, files: int = 150) -> Figures:
    """Measure api_rps, reads of an item's status that one API process answers a second, and api_p99_ms, the time of a
    read beside busy workers."""
    from tasks import knowledge

    with running_api() as port, TemporaryDirectory() as name:
        base = knowledge.create_base("read")
        item = knowledge.add_notes(base.id, ["A note."]).created[0]
        path = f"/api/v1/knowledge-items/{item.id}"
        _read(port, path, 1.0, 0)
        progress("reads, as many as possible")
        alone = _readers(port, path, seconds, rate=0)
        progress("reads while workers are busy")
        for number in range(AT_ONCE):
            paths = []
            for each in range(files // AT_ONCE):
                paths.append(Path(name) / f"{number}-{each}.html")
                paths[-1].write_text(html(number * 1000 + each, sections=8))
            knowledge.add_files(knowledge.create_base(f"busy {number}").id, paths)
        busy = _readers(port, path, seconds, rate=BUSY_RATE)
        if not any(knowledge.get_status().per_base_queue.values()):
            raise BenchmarkError("the workers were done before the readers")
    return {
        "api_rps": round(len(alone) / seconds),
        "api_p99_ms": round(percentile(busy, 0.99) * 1000, 1),
        "p50 alone, p50 while busy, ms": f"{percentile(alone, 0.5) * 1000:.1f}, {percentile(busy, 0.5) * 1000:.1f}",
    }


def measure_upload(megabytes: int = 500) -> Figures:
    """Measure upload_peak_mb: the growth of the API's memory during an upload of one file of this size to a base."""
    from tasks import knowledge

    size = megabytes * 1_000_000
    limit = str(megabytes + 50)
    with running_api(PENSTOCK_API__MAX_UPLOAD_MB=limit, PENSTOCK_KNOWLEDGE__MAX_FILE_MB=limit) as port:
        base = knowledge.create_base("large")
        process = api_process()
        before, peak = process.memory_info().rss, 0
        progress(f"an upload of {megabytes} MB")
        head, tail = _multipart("large.bin")
        sender = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        sender.putrequest("POST", f"/api/v1/knowledge-bases/{base.id}/items")
        sender.putheader("Content-Type", "multipart/form-data; boundary=penstock")
        sender.putheader("Content-Length", str(len(head) + size + len(tail)))
        sender.endheaders(head)
        piece = os.urandom(1 << 20)
        sent = 0
        started = time.monotonic()
        while sent < size:
            some = piece[: min(len(piece), size - sent)]
            sender.send(some)
            sent += len(some)
            peak = max(peak, process.memory_info().rss)
        sender.send(tail)
        answer = sender.getresponse()
        reply = json.loads(answer.read())
        peak = max(peak, process.memory_info().rss)
        if answer.status >= 400:
            raise BenchmarkError(f"the upload was refused: {answer.status} {reply}")
    return {
        "upload_peak_mb": round((peak - before) / 1e6, 1),
        "seconds for the upload": round(time.monotonic() - started, 1),
    }


def measure_exports(megabytes: int = 10) -> Figures:
    """Measure export_peak_mb: the growth of the API's memory while it answers three requests at once for a Markdown
    file of this size, all of it paragraphs of one letter, as a DoclingDocument; and one that asks for its chunks."""
    from tasks import documents

    with running_api() as port, TemporaryDirectory() as name:
        path = Path(name) / "letters.md"
        path.write_text("a\n\n" * (megabytes * 1_000_000 // 3))
        progress(f"a document of {megabytes} MB")
        document = documents.submit(path).wait(120)
        process = api_process()
        before, peak, started = process.memory_info().rss, 0, time.monotonic()
        progress("three exports")
        address = f"/api/v1/documents/{document.id}/result?format=docling"
        with ThreadPoolExecutor(3) as threads:
            asked = [threads.submit(_size_of_answer, port, address) for _ in range(3)]
            while not all(answer.done() for answer in asked):
                peak = max(peak, process.memory_info().rss)
                time.sleep(0.02)
            sizes = {answer.result() for answer in asked}
        seconds = time.monotonic() - started
        progress("chunks")
        _size_of_answer(port, f"/v1/result/{document.id}-e-ky512")
        peak = max(peak, process.memory_info().rss)
    return {
        "export_peak_mb": round((peak - before) / 1e6, 1),
        "MB of one export": round(max(sizes) / 1e6, 1),
        "seconds for three": round(seconds, 1),
    }


def _size_of_answer(port: int, address: str) -> int:
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=200)
    try:
        asked.request("GET", address)
        answer, size = asked.getresponse(), 0
        while piece := answer.read(1 << 18):
            size += len(piece)
    finally:
        asked.close()
    if answer.status != 200:
        raise BenchmarkError(f"{address} was answered with {answer.status}")
    return size


def _multipart(name: str) -> tuple[bytes, bytes]:
    head = f'--penstock\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
    return f"{head}Content-Type: application/octet-stream\r\n\r\n".encode(), b"\r\n--penstock--\r\n"


@contextmanager
def running_api(**settings: str) -> Iterator[int]:
    """Run a stack with the API; yield its port."""
    port = free_port()
    own = {"PENSTOCK_API__PORT": str(port), "PENSTOCK_API__REQUESTS_PER_MIN": "0"}
    with running(api=True, **own, **settings):
        wait_until("the API", lambda: is_ready(port), 60)
        yield port


def api_process() -> psutil.Process:
    """Return the API process of this part's stack."""
    processes = [process for process in users_of(get_settings().data_dir) if process.name() == "api"]
    if len(processes) != 1:
        raise BenchmarkError(f"{len(processes)} processes look like the API")
    return processes[0]


def processor_s() -> float:
    """Return the API's CPU seconds so far. On a busy machine they say more than a clock."""
    used = api_process().cpu_times()
    return float(used.user + used.system)


def _readers(port: int, path: str, seconds: float, rate: float) -> list[float]:
    """Return the seconds of each read. `rate`: reads a second of all readers; 0: as many as possible."""
    command = [sys.executable, "-m", "benchmarks.knowledge_api", str(port), path, str(seconds), str(rate / READERS)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(READERS)]
    return [took for reader in readers for took in json.loads(reader.communicate()[0])]


def _read(port: int, path: str, seconds: float, rate: float) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    took: list[float] = []
    started = time.monotonic()
    while (now := time.monotonic()) < started + seconds:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise BenchmarkError(f"a read was answered with {answer.status}")
        took.append(time.monotonic() - now)
        if rate:
            time.sleep(max(0.0, started + len(took) / rate - time.monotonic()))
    return took


if __name__ == "__main__":
    print(json.dumps(_read(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))))
