"""Open consoles while pages finish: their cost to the workers, and whether each shows the end.

The consoles are streams. One process reads them all, so that they use as little of the two cores as possible.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.knowledge_api import api_process, processor_s, running_api
from benchmarks.suite import Figures
from benchmarks.support import (
    PROVIDER,
    BenchmarkError,
    completed,
    progress,
    provider_server,
    tiny_pages,
    use_provider,
)
from tasks.documents import Document, pause, resume, status, submit

LATENCY_S = 0.2
DONE_S = 120
_PARTIAL = re.compile(r'<hx-partial hx-target="#([^"]+)" hx-swap="\w+">(.*?)</hx-partial>', re.DOTALL)


def measure(consoles: int = 50, pages: int = 2000) -> Figures:
    """Measure consoles_50_workers_lose, consoles_50_memory_mb_growth and missed_final_states."""
    with provider_server("--latency", str(LATENCY_S), "--max-concurrent", "64") as url:
        use_provider(url)
        # Documents alone are measured before and after, so that a machine that slows down does not favour either.
        with running_api(PENSTOCK_API__STREAMS_PER_KEY=str(2 * consoles)) as port:
            completed(_submitted("warm-up", 20), DONE_S)
            progress(f"{pages // 2} pages alone")
            before = _rate(pages // 2)
            document = pause(_submitted("watched", pages).id)
            process = api_process()
            with _consoles(port, document.id, consoles) as streams:
                time.sleep(2)  # calls under way end
                held, already = process.memory_info().rss, status(document.id).completed_count
                progress(f"{pages} pages beside {consoles} consoles")
                used_s, started = processor_s(), time.monotonic()
                completed(resume(document.id), DONE_S)
                took_s, used_s = time.monotonic() - started, processor_s() - used_s
                beside = (pages - already) / took_s
                grown = process.memory_info().rss - held
                time.sleep(3)
                output, _ = streams.communicate("end\n", timeout=30)
            progress(f"{pages // 2} pages alone, again")
            after = _rate(pages // 2)
    ends: list[bool] = json.loads(output)
    alone = (before + after) / 2
    return {
        "consoles_50_workers_lose": round(max(0.0, 1 - beside / alone), 3),
        "consoles_50_memory_mb_growth": round(grown / 1e6, 1),
        "missed_final_states": ends.count(False),
        "consoles that must show the end": len(ends),
        "the API's share of one core, beside": round(used_s / took_s, 3),
        "pages/s alone, beside, alone": f"{before:.1f}, {beside:.1f}, {after:.1f}",
    }


def _submitted(name: str, pages: int) -> Document:
    return submit(tiny_pages(name, pages), fresh=True, provider=PROVIDER)


def _rate(pages: int) -> float:
    started = time.monotonic()
    completed(_submitted("alone", pages), DONE_S)
    return pages / (time.monotonic() - started)


@contextmanager
def _consoles(port: int, document_id: str, count: int) -> Iterator["subprocess.Popen[str]"]:
    """Open consoles that show the document, the list with it, and the overview; wait until all are connected."""
    command = [sys.executable, "-m", "benchmarks.console_streams", str(port), document_id, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as streams:
        try:
            assert streams.stdout
            if streams.stdout.readline().strip() != "connected":
                raise BenchmarkError("the consoles could not connect")
            yield streams
        finally:
            streams.kill()


async def _read_stream(port: int, path: str, shown: dict[str, str], connected: asyncio.Event) -> None:
    """Read a stream and keep the last fragment of each element."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    # HTTP/1.0: the body comes without chunks.
    writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n\r\n".encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise BenchmarkError(f"{path} was answered with {status!r}")
    lines: list[str] = []
    while line := (await reader.readline()).decode():
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif lines and not line.strip():
            shown.update(_PARTIAL.findall("".join(lines)))
            lines.clear()
            connected.set()


async def _read_all(port: int, document_id: str, count: int) -> list[bool]:
    """Return for each console that shows the document or its row whether it showed the document completed."""
    views = [f"document&id={document_id}&first=1", f"documents&rows={document_id}", "overview"]
    shares = [views[number % 5 // 2] for number in range(count)]
    shown: list[dict[str, str]] = [{} for _ in shares]
    connected = [asyncio.Event() for _ in shares]
    tasks = [
        asyncio.create_task(_read_stream(port, f"/console/live?view={view}", seen, event))
        for view, seen, event in zip(shares, shown, connected, strict=True)
    ]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in connected)), 30)
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for task in tasks:
        task.cancel()
    wanted = {views[0]: "facts", views[1]: f"d-{document_id}"}
    return [
        "state done" in seen.get(wanted[view], "") for view, seen in zip(shares, shown, strict=True) if view in wanted
    ]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_read_all(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))))
