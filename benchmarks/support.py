"""Code that the parts share: processes, waits with a deadline, sample files."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil

from pipeline.engine.presence import Presence
from pipeline.process import forget_context, get_context
from pipeline.settings import get_settings
from pipeline.standalone import redis_server
from pipeline.standalone.supervisor import read_info
from tests.support.redis_server import free_port
from tests.support.samples import Sheet, pdf_bytes, shown, shown_lines

if TYPE_CHECKING:
    from tasks.documents import Document

ROOT = Path(__file__).resolve().parents[1]
CORPUS = Path(os.environ.get("PENSTOCK_CORPUS") or ROOT.parent / "shared" / "corpus")
BIG_DOCUMENT = CORPUS / "documents" / "DA-619p.pdf"
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
START_S = 60.0
END_S = 20.0
PROVIDER = "sample"
"""The provider of parts that need one."""


class BenchmarkError(RuntimeError):
    """A part could not be measured."""


def progress(text: str) -> None:
    """Write the current step to standard error."""
    sys.stderr.write(f"  … {text}\n")
    sys.stderr.flush()


def wait_until(condition_name: str, condition: Callable[[], bool], timeout_s: float, *, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{condition_name}: still waiting after {timeout_s:g} s")
        time.sleep(every_s)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of `values` does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: Sequence[float], unit: str, digits: int = 2) -> str:
    """Render values for people in the order of their measurement."""
    return " ".join(f"{value:.{digits}f}" for value in values) + f" {unit}"


def use_settings(**variables: str) -> None:
    """Set these variables for this process and its children. Call it before `tasks` is imported."""
    os.environ |= variables
    get_settings.cache_clear()
    forget_context()


def use_provider(url: str, **fields: Any) -> None:
    """Configure the provider at `url` as `PROVIDER`, with these settings. Call it before `tasks` is imported."""
    profile = {"base_url": f"{url}/v1", "api_key": "none", "model": "m", **fields}
    use_settings(PENSTOCK_PROVIDERS=json.dumps({PROVIDER: profile}))


@contextmanager
def process(
    command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, end: int = signal.SIGTERM
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program during the `with` block with its output in `log`; end it with the signal `end`."""
    with log.open("ab") as output:
        running = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield running
    finally:
        stop(running, end)


def stop(running: "subprocess.Popen[Any]", number: int = signal.SIGTERM) -> None:
    """End a program and its children: signal it, then kill it after `END_S`."""
    family = [running.pid, *(child.pid for child in _children(running.pid))]
    if running.poll() is None:
        running.send_signal(number)
    try:
        running.wait(END_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
    for pid in family[1:]:
        _kill(pid, str(get_settings().data_dir))


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def users_of(folder: Path | str) -> list[psutil.Process]:
    """Return the processes of this benchmark: only they use `folder`."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _uses(process, str(folder))]


def _uses(process: psutil.Process, folder: str) -> bool:
    try:
        # redis-server has overwritten its environment, but works in its folder.
        places = [process.environ().get("PENSTOCK_DATA_DIR", ""), process.cwd()]
    except (psutil.Error, OSError):
        return False
    return any(place == folder or place.startswith(f"{folder}/") for place in places)


def _kill(pid: int, folder: str) -> None:
    # Check its folder too: another process may have got the number.
    if psutil.pid_exists(pid):
        process = psutil.Process(pid)
        if _uses(process, folder):
            process.kill()


def end_all(folder: Path) -> int:
    """Kill all processes that still use `folder`; return their number."""
    processes = users_of(folder)
    for stray in processes:
        _kill(stray.pid, str(folder))
    return len(processes)


@contextmanager
def embedded_redis() -> Iterator[None]:
    """Run the embedded Redis without workers."""
    settings = get_settings()
    with process(redis_server.command(settings), settings.data_dir / "redis.log"):
        wait_until("Redis", lambda: redis_server.is_up(settings), START_S)
        yield


@contextmanager
def stack(*, api: bool = False) -> Iterator[int]:
    """Run `penstock up` and wait until it is ready; yield its process id. `api`: with the API at a free port."""
    settings = get_settings()
    log = settings.data_dir / "up.log"
    env = {"PENSTOCK_API__PORT": os.environ.get("PENSTOCK_API__PORT") or str(free_port())}
    with process([*penstock(), "up", "--api" if api else "--no-api"], log, env=env, end=signal.SIGINT) as running:
        expected = 3 if settings.providers else 2

        def ready() -> bool:
            if running.poll() is not None:
                raise BenchmarkError(f"penstock up ended:\n{tail(log)}")
            return read_info(settings) is not None and len(Presence(get_context().redis).alive()) >= expected

        wait_until("the stack", ready, START_S)
        yield running.pid


@contextmanager
def celery_workers(commands: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Run Penstock's workers by name, each with these arguments of `celery_worker`, and wait until they are ready."""
    with ExitStack() as running:
        for name, arguments in commands.items():
            command = celery_worker(*arguments, "-n", f"{name}@%h")
            running.enter_context(process(command, get_settings().data_dir / f"{name}.log"))
        wait_until("the workers", lambda: len(Presence(get_context().redis).alive()) >= len(commands), START_S)
        yield


def completed(document: "Document", timeout_s: float) -> "Document":
    """Wait for the document's end. Raises `BenchmarkError` if it does not end COMPLETED."""
    ended = document.wait(timeout_s)
    if ended.status.name != "COMPLETED":
        raise BenchmarkError(f"the document is {ended.status.name}: {ended.error}")
    return ended


def is_ready(port: int) -> bool:
    """Whether the server at this port answers that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def penstock() -> list[str]:
    """Return the command `penstock` of this environment."""
    script = Path(sys.executable).with_name("penstock")
    return (
        [str(script)] if script.exists() else [sys.executable, "-c", "from pipeline.interfaces.cli import main; main()"]
    )


def celery_worker(app: str, *arguments: str) -> list[str]:
    """Return the command that starts a worker of this application."""
    return [sys.executable, "-m", "celery", "-A", app, "worker", *arguments, *QUIET]


def tail(path: Path, characters: int = 2000) -> str:
    return path.read_text(errors="replace")[-characters:] if path.exists() else ""


def new_folder(name: str) -> Path:
    folder = get_settings().data_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def text_document(name: str, pages: int) -> Path:
    """Write a new PDF with a text layer."""
    lines = [f"{uuid4().hex} is line {number} of this page, which has a text layer." for number in range(30)]
    path = new_folder("samples") / f"{name}.pdf"
    path.write_bytes(pdf_bytes([Sheet(shown_lines([f"Page {number}", *lines])) for number in range(1, pages + 1)]))
    return path


def tiny_pages(name: str, pages: int) -> Path:
    """Write a PDF with small pages that render quickly. Each page is unique, so that the cache has no answer."""
    mark = uuid4().hex[:8]
    texts = [shown(f"{mark} {number}", 4, 30, 14) for number in range(1, pages + 1)]
    path = new_folder("samples") / f"{name}.pdf"
    path.write_bytes(pdf_bytes([Sheet(text, box="0 0 140 80") for text in texts]))
    return path


def big_document() -> Path:
    """Return the path of DA-619p.pdf. Raises `BenchmarkError` without the corpus."""
    if not BIG_DOCUMENT.is_file():
        raise BenchmarkError(f"{BIG_DOCUMENT} is absent: set PENSTOCK_CORPUS to the folder with the corpus")
    return BIG_DOCUMENT


@contextmanager
def provider_server(*options: str) -> Iterator[str]:
    """Run the tests' provider in a process of its own; yield its address."""
    command = [sys.executable, "-m", "tests.support.provider_server", *options]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    # A real provider has its own CPUs: our load must not delay its answers. Not every user may raise priorities.
    with suppress(psutil.AccessDenied):
        psutil.Process(running.pid).nice(-10)
    try:
        assert running.stdout
        url = running.stdout.readline().strip().removesuffix("/v1")
        if not url:
            raise BenchmarkError("the provider server did not start")
        yield url
    finally:
        stop(running)


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Request `__stats` from the provider's server, or send `__script` with a body."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{url}/{path}", data, timeout=10) as reply:
        return json.load(reply)
