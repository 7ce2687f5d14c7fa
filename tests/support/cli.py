"""The command line as people and scripts use it: real processes on a data folder, with or without a terminal."""

import fcntl
import json
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self
from uuid import uuid4
from weakref import WeakSet

import psutil

from pipeline.flows.documents.states import DocumentStatus
from pipeline.settings import Settings
from tests.support.preloaded import PERSONAL, Forked, preloaded
from tests.support.samples import text_pdf
from tests.support.waiting import wait_until

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
RUN_S = 300
"""The time-out of one command on a busy machine."""
FAST = {
    "PENSTOCK_STACK_LINGER_S": "0.2",
    "PENSTOCK_SWEEP_INTERVAL_S": "1",
    "PENSTOCK_PRESENCE_INTERVAL_S": "0.5",
    "PENSTOCK_PRESENCE_TTL_S": "3",
    "PENSTOCK_DOCUMENTS__BACKOFF_S": "[0.2]",
    "PENSTOCK_DOCUMENTS__CONVERTER_COUNT": "2",
    "PENSTOCK_API__WITH_STACK": "false",
}
"""Settings that shorten the waits of tests, and switch off parts that only some need."""
_SETTLED_S = 20
"""At this age, even a forked process on a busy machine shows its own environment."""
_STRANGERS: defaultdict[Path, WeakSet[psutil.Process]] = defaultdict(WeakSet)
"""By data folder, old processes that do not work on it, because reading the environments of all takes milliseconds."""
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def documents(self) -> list[dict[str, Any]]:
        """The report of `convert --json`."""
        return list(self.json()["documents"])


@dataclass(frozen=True)
class Cli:
    """Commands on one data folder, run in one current folder."""

    data_dir: Path
    cwd: Path
    env: dict[str, str]
    forked: bool = sys.platform == "linux"
    """Fork commands, and the stacks that they start, instead of starting them for real; see `preloaded`."""

    def at(self, cwd: Path) -> Self:
        """Return commands on the same data folder, run in another current folder."""
        return replace(self, cwd=cwd)

    def real(self) -> Self:
        """Return commands that start programs and stacks for real, as users do."""
        return replace(self, forked=False)

    def using(self, **env: str | None) -> Self:
        """Return commands with further environment variables; None removes one."""
        merged = {**self.env, **env}
        return replace(self, env={name: value for name, value in merged.items() if value is not None})

    def run(self, *arguments: str | Path, timeout_s: float = RUN_S, stdin: str = "") -> Result:
        """Run `penstock` and wait for its end."""
        if not self.forked:
            return self.execute([PENSTOCK, *map(str, arguments)], timeout_s=timeout_s, stdin=stdin)
        return self._fork("penstock", arguments, timeout_s, stdin)

    def _fork(self, program: str, arguments: Sequence[str | Path], timeout_s: float = RUN_S, stdin: str = "") -> Result:
        with TemporaryFile() as stdin_file, TemporaryFile() as out, TemporaryFile() as err:
            stdin_file.write(stdin.encode())
            stdin_file.seek(0)
            process = preloaded().start(program, [*map(str, arguments)], self.env, self.cwd, stdin_file, out, err)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                raise
            return Result(code, _written(out), _written(err))

    def run_all(self, commands: Iterable[Sequence[str | Path]]) -> list[Result]:
        """Run several `penstock` commands at the same time. Return their results, in order."""
        return together(partial(self.run, *command) for command in commands)

    def python(self, script: str, *arguments: str | Path) -> Result:
        """Run a user's Python program."""
        if self.forked:
            return self._fork("script", [script, *arguments])
        return self.execute([sys.executable, "-c", script, *map(str, arguments)])

    def execute(self, command: list[str], *, timeout_s: float = RUN_S, stdin: str = "") -> Result:
        done = subprocess.run(
            command,
            env=self.env,
            cwd=self.cwd,
            input=stdin.encode(),
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str | Path) -> "Running":
        """Start `penstock` in the background."""
        output = self.cwd / f"output-{uuid4().hex[:8]}.log"
        with output.open("wb") as file, open(os.devnull, "rb") as nothing:  # noqa: PTH123
            process = self._started(arguments, self.env, nothing, file)
        return Running(process, output)

    def _started(
        self, arguments: Sequence[str | Path], env: dict[str, str], input_: IO[bytes] | int, written: IO[bytes] | int
    ) -> subprocess.Popen[bytes] | Forked:
        words = [str(argument) for argument in arguments]
        if self.forked:
            return preloaded().start("penstock", words, env, self.cwd, input_, written, written)
        return subprocess.Popen(
            [PENSTOCK, *words],
            env=env,
            cwd=self.cwd,
            stdin=input_,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )

    def terminal(
        self, *arguments: str | Path, columns: int = 100, rows: int = 40, answers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run `penstock` in a terminal of this size. Return its exit code and its output. `answers`: lines to type, by
        the question that they answer."""
        controller, terminal_side = os.openpty()
        fcntl.ioctl(terminal_side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = self._started(arguments, {**self.env, "TERM": "xterm-256color"}, terminal_side, terminal_side)
        os.close(terminal_side)
        written, unanswered = b"", dict(answers or {})
        with suppress(OSError), os.fdopen(controller, "r+b", 0) as terminal:  # the last reader gets EIO
            while chunk := terminal.read(65536):
                written += chunk
                for question in [words for words in unanswered if words.encode() in written]:
                    terminal.write(f"{unanswered.pop(question)}\n".encode())
        return process.wait(RUN_S), written.decode()

    @property
    def supervisor(self) -> dict[str, Any] | None:
        """The process and mode of the stack's supervisor, once the stack is up."""
        try:
            return dict(json.loads((self.data_dir / "stack.json").read_text()))
        except (OSError, ValueError):
            return None

    def processes(self) -> list[psutil.Process]:
        """Return all processes that work on this data folder, Redis first."""
        strangers, own = _STRANGERS[self.data_dir], []
        for process in psutil.process_iter():
            if process in strangers:
                continue
            if self._is_ours(process):
                own.append(process)
            elif _age_s(process) > _SETTLED_S:
                strangers.add(process)
        return sorted(own, key=lambda process: not is_redis(process))

    def status(self, document_id: str) -> str:
        """Return the state of a document."""
        with closing(sqlite3.connect(self.data_dir / "penstock.db")) as database:
            row = database.execute("SELECT status FROM documents WHERE id = ?", [document_id]).fetchone()
        return DocumentStatus(row[0]).name

    def newest(self) -> str:
        """Return the id of the newest document."""
        with closing(sqlite3.connect(self.data_dir / "penstock.db")) as database:
            return str(database.execute("SELECT id FROM documents ORDER BY created_at DESC").fetchone()[0])

    def claims(self) -> int:
        """Return the number of claimed rows."""
        held = "SELECT count(*) FROM {} WHERE claim_id IS NOT NULL OR worker_id IS NOT NULL"
        with closing(sqlite3.connect(self.data_dir / "penstock.db")) as database:
            return sum(database.execute(held.format(table)).fetchone()[0] for table in ("documents", "pages"))

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if is_redis(process):  # it writes its title over its environment
                return str(Settings(data_dir=self.data_dir).redis_socket) in " ".join(process.cmdline())
            return process.environ().get("PENSTOCK_DATA_DIR") == str(self.data_dir)
        return False

    def wait_until_gone(self, deadline_s: float = 120) -> None:
        """Wait until no process works on this data folder."""
        wait_until(
            lambda: not self.processes(), deadline_s, "all processes on the data folder ended", last=self.processes
        )

    def kill_everything(self) -> None:
        """Kill the processes on this data folder until none is left: a supervisor may have replaced a killed Redis."""
        while processes := self.processes():
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@dataclass(frozen=True)
class Running:
    """A running command."""

    process: subprocess.Popen[bytes] | Forked
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, words: str, deadline_s: float = 180) -> None:
        """Wait until the command has written `words`."""
        wait_until(lambda: words in self.output, deadline_s, f"{words!r} was written", last=lambda: self.output)

    def interrupt(self) -> None:
        """Send Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float = RUN_S) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(timeout_s)


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def together(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """Make several calls at the same time. Return their results, in order."""
    with ThreadPoolExecutor(max_workers=3) as threads:
        return list(threads.map(lambda call: call(), calls))


def _age_s(process: psutil.Process) -> float:
    """0 if it has ended."""
    with suppress(psutil.Error):
        return time.time() - process.create_time()
    return 0


def is_redis(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "redis-server" in " ".join(process.cmdline())
    return False


def environment(data_dir: Path, **further: str) -> dict[str, str]:
    """Return the environment of a user with this data folder and no other settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PERSONAL)}
    return {**inherited, **FAST, "PENSTOCK_DATA_DIR": str(data_dir), **further}


def provider_settings(base_url: str, name: str = "ai") -> dict[str, str]:
    """Return variables that define the provider at `base_url` as `name`."""
    prefix = f"PENSTOCK_PROVIDERS__{name.upper()}__"
    return {f"{prefix}BASE_URL": base_url, f"{prefix}API_KEY": "secret-key", f"{prefix}MODEL": "vision-1"}


def new_pdf(path: Path, pages: int = 1) -> Path:
    """Write a PDF with a text layer, different from all earlier ones. Page N has a line with `page N`."""
    return text_pdf(path, [[f"Report {uuid4().hex}", f"This is page {number}"] for number in range(1, pages + 1)])


def plain(written: str) -> str:
    """Return a terminal's output without its control codes."""
    return _TERMINAL_CODE.sub("", written)
