"""Nodes as processes: the one in JavaScript, and Penstock's own."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodejs import FOLDER, node

_STOP_S = 20


@dataclass(frozen=True)
class Place:
    """Where a node connects to, and as what."""

    gateway: str
    token: str
    folder: Path
    node_id: str = "desk"
    slots: int = 2

    @property
    def go(self) -> Path:
        """Prompts that begin with `wait` are answered once this file exists."""
        return self.folder / "go"


@dataclass(frozen=True)
class Node:
    """A node that runs."""

    process: subprocess.Popen[bytes]
    log: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it has written of this event, if it writes such."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if event["event"] == name]


def javascript(place: Place, *more: str) -> list[str]:
    """The one in JavaScript."""
    token = place.folder / "token"
    token.write_text(place.token)
    return [
        node() or "node", str(FOLDER / "node.js"), "--gateway", place.gateway, "--token-file", str(token),
        "--node-id", place.node_id, "--slots", str(place.slots), "--wait-for", str(place.go), *more,
    ]  # fmt: skip


Command = Callable[..., list[str]]


@contextmanager
def running(command: list[str], folder: Path, env: dict[str, str] | None = None) -> Iterator[Node]:
    """The node, until the end of the block. What it says is in a file."""
    log = folder / "node.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=env)
    try:
        yield Node(process, log)
    finally:
        process.kill()
        process.wait(_STOP_S)
