"""A real stack, started the way users start it, for other projects' clients to talk to.

These tests run in a virtual environment with the clients and without Penstock: `PENSTOCK` is its command.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("PENSTOCK", str(ROOT / ".venv" / "bin" / "penstock"))
_START_S, _STOP_S = 60, 60


@dataclass(frozen=True)
class Server:
    """Where Penstock is, and a key for it."""

    url: str
    key: str


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """`penstock up` in a data folder of its own, on a free port."""
    folder = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))  # short: sockets are in it
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    env = own | {"PENSTOCK_DATA_DIR": str(folder), "PENSTOCK_API__PORT": str(port)}
    log = folder / "up.log"
    try:
        with log.open("wb") as output:
            stack = subprocess.Popen([COMMAND, "up"], env=env, cwd=folder, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(f"{url}/health", stack, log)
            made = subprocess.run(
                [COMMAND, "keys", "create", "clients", "--json"],
                env=env, cwd=folder, check=True, capture_output=True, timeout=60,
            )  # fmt: skip
            yield Server(url, json.loads(made.stdout)["secret"])
        finally:
            ended = stack.poll()
            stack.terminate()
            if ended is not None:
                pytest.fail(f"the stack ended by itself with {ended}:\n{log.read_text(errors='replace')[-4000:]}")
            try:
                stack.wait(_STOP_S)
            finally:
                stack.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(url: str, stack: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if stack.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the stack did not start:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)


@pytest.fixture(scope="session")
def pdf() -> Path:
    """Three pages: two columns of text, tables, and a page that is only a picture."""
    return ROOT / "examples" / "about-penstock.pdf"
