"""A real stack, started like users start it, for the clients of other projects.

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
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("PENSTOCK", str(ROOT / ".venv" / "bin" / "penstock"))
HEARTBEAT_MS = 1000
"""Capabilities of the gateway's nodes."""
_START_S, _STOP_S = 60, 60


@dataclass(frozen=True)
class Server:
    """The address of Penstock and a key for it. `folder` and `env` are those of its commands."""

    url: str
    key: str
    gateway: str
    folder: Path
    env: dict[str, str]

    def run(self, *arguments: str) -> str:
        """Run a command of Penstock; return its output."""
        done = subprocess.run(
            [COMMAND, *arguments], env=self.env, cwd=self.folder, check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """`penstock up` with a gateway of inference nodes, in a data folder of its own, on free ports."""
    folder = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))  # a short path, for sockets
    with socket.create_server(("127.0.0.1", 0)) as api_socket, socket.create_server(("127.0.0.1", 0)) as other:
        port, gateway_port = api_socket.getsockname()[1], other.getsockname()[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    env = own | {
        "PENSTOCK_DATA_DIR": str(folder),
        "PENSTOCK_API__PORT": str(port),
        "PENSTOCK_GATEWAY__ENABLED": "true",
        "PENSTOCK_GATEWAY__PORT": str(gateway_port),
        "PENSTOCK_GATEWAY__HEARTBEAT_MS": str(HEARTBEAT_MS),
        "PENSTOCK_GATEWAY__COOL_DOWN_MS": "50",
    }
    log = folder / "up.log"
    try:
        with log.open("wb") as output:
            stack = subprocess.Popen([COMMAND, "up"], env=env, cwd=folder, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(f"{url}/health", stack, log)
            _wait_for(f"http://127.0.0.1:{gateway_port}/readyz", stack, log)
            started = Server(url, "", f"ws://127.0.0.1:{gateway_port}", folder, env)
            created = started.run("keys", "create", "clients", "--json")
            yield replace(started, key=json.loads(created)["secret"])
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
    """Three pages: two columns of text, tables, and a scanned page."""
    return ROOT / "examples" / "about-penstock.pdf"
