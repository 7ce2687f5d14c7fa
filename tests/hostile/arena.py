"""The arena of hostile inputs: one stack, and around it files that it must not touch."""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.cli import Cli, environment, is_redis, new_pdf, provider_settings
from tests.support.redis_server import free_port

_OFTEN_S = 0.3
LIMITS = {
    "PENSTOCK_DOCUMENTS__PAGE_TIMEOUT_S": "3",
    "PENSTOCK_DOCUMENTS__SPLIT_TIMEOUT_S": "5",
    "PENSTOCK_DOCUMENTS__READER_MEMORY_MB": "1200",
    "PENSTOCK_DOCUMENTS__CONVERTER_COUNT": "2",
    "PENSTOCK_KNOWLEDGE__READ_TIMEOUT_S": "4",
    "PENSTOCK_KNOWLEDGE__READ_MEMORY_MB": "800",
    "PENSTOCK_PROVIDERS__AI__TIMEOUT_S": "20",
    "PENSTOCK_PROVIDERS__AI__BREAKER_COOL_DOWN_S": "0.5",
    "PENSTOCK_PROVIDERS__AI__PRICES": '{"vision-1": {"input": 1, "output": 4}}',
    "PENSTOCK_PROVIDERS__AI__DAILY_SPEND_CAP": "1000000",
    "PENSTOCK_API__HEAD_TIMEOUT_S": "2",
    "PENSTOCK_API__IDLE_TIMEOUT_S": "2",
}
"""Low limits, which bombs reach soon."""


@dataclass
class Arena:
    """The stack's command line in the folder `work`, and the files around it."""

    root: Path
    cli: Cli
    port: int
    peak: dict[str, int] = field(default_factory=dict)
    """The largest memory of each kind of process of the stack, in bytes."""
    calm: dict[str, int] = field(default_factory=dict)
    """The memory of each process after work on a good file."""
    before: dict[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    def folder(self, name: str) -> Path:
        """Create a folder below `work`."""
        path = self.work / name
        path.mkdir()
        return path

    def at(self, folder: Path) -> Cli:
        return self.cli.at(folder)

    def page_errors(self) -> dict[str, str]:
        """Return the error of a failed page by document."""
        with closing(sqlite3.connect(self.root / "data" / "penstock.db")) as database:
            return dict(database.execute("SELECT document_id, error FROM pages WHERE error IS NOT NULL"))

    def snapshot(self) -> dict[str, str]:
        """Return modes, times of change and contents of all files around the data folder and the folder `work`."""
        files = {}
        for parent, folders, names in os.walk(self.root):
            if Path(parent) == self.root:
                folders[:] = [name for name in folders if name not in {"data", "work"}]
                names = [name for name in names if not name.startswith("output-")]  # noqa: PLW2901
            # A temporary folder of Python's and Celery's pools.
            folders[:] = [name for name in folders if not (Path(parent).name == "tmp" and name.startswith("pymp-"))]
            for name in [*folders, *names]:
                path = Path(parent, name)
                status = path.lstat()
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                files[str(path.relative_to(self.root))] = f"{status.st_mode:o} {content}"
        return files

    def changed_files(self) -> list[tuple[str, str]]:
        """Return the new and changed files around the data folder."""
        return sorted(self.snapshot().items() ^ self.before.items())

    def memory(self) -> dict[str, int]:
        """Return the memory of each process in bytes, by kind."""
        sizes: dict[str, int] = {}
        for process in self.cli.processes():
            with suppress(psutil.Error):
                sizes[f"{_role(process)} {process.pid}"] = process.memory_info().rss
        return sizes

    def watch(self, stop: threading.Event) -> None:
        while not stop.wait(_OFTEN_S):
            for name, size in self.memory().items():
                role = name.rpartition(" ")[0]
                self.peak[role] = max(self.peak.get(role, 0), size)


def _role(process: psutil.Process) -> str:
    if is_redis(process):
        return "redis"
    words = " ".join(process.cmdline())
    for role in ("child_main", "child_server", "flower"):
        if role in words:
            return role
    return process.name()


@contextmanager
def opened(root: Path, base_url: str) -> Iterator[Arena]:
    """Run a stack below `root`, a folder that other users may enter."""
    root.chmod(0o755)
    for name in ("home", "tmp", "outside", "work", "data"):
        (root / name).mkdir(mode=0o755)
    for suffix in (".md", ".pdf", ".png", ".txt", ".mp3", ".json"):
        (root / "outside" / f"secret{suffix}").write_text("a secret that is nobody's")
    (root / "home" / ".bashrc").write_text("# mine\n")
    port = free_port()
    settings = provider_settings(base_url) | LIMITS | {"PENSTOCK_MUSIC__FOLDER": str(root / "work" / "songs")}
    settings |= {"PENSTOCK_API__WITH_STACK": "true", "PENSTOCK_API__PORT": str(port)}
    settings |= {"HOME": str(root / "home"), "TMPDIR": str(root / "tmp")}
    env = environment(root / "data") | settings
    arena = Arena(root, Cli(root / "data", root / "work", env), port)
    arena.before = arena.snapshot()
    up = arena.cli.at(root).real().start("up")
    stop = threading.Event()
    watcher = threading.Thread(target=arena.watch, args=(stop,), daemon=True)
    try:
        up.wait_for("Penstock is up")
        _warm_up(arena)
        watcher.start()
        yield arena
        stop.set()
        watcher.join()
        up.interrupt()
        assert up.wait() == 0, up.output
        arena.cli.wait_until_gone()
        assert not arena.changed_files(), arena.changed_files()
    finally:
        stop.set()
        arena.cli.kill_everything()


def _warm_up(arena: Arena) -> None:
    good = arena.folder("good")
    names = [new_pdf(good / f"good-{number}.pdf", pages=3).name for number in range(4)]
    done = arena.at(good).run("convert", *names)
    assert done.code == 0, done.err
    arena.calm = arena.memory()
