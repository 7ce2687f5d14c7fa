"""Nodes as processes: the node in JavaScript, and Penstock's own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conftest import COMMAND
from model_server import model_server
from nodejs import FOLDER, node

_STOP_S = 20


@dataclass(frozen=True)
class Place:
    """A node's gateway and id."""

    gateway: str
    token: str
    folder: Path
    node_id: str = "desk"
    slots: int = 2

    @property
    def go(self) -> Path:
        """The node answers prompts that begin with `wait` once this file exists."""
        return self.folder / "go"

    @property
    def log(self) -> Path:
        """The node's output."""
        return self.folder / "node.log"


Process = subprocess.Popen[bytes]


@contextmanager
def running(kind: str, place: Place) -> Iterator[Process]:
    """Run a node of this kind until the end of the block."""
    token = place.folder / "token"
    token.write_text(place.token)
    common = ["--gateway", place.gateway, "--token-file", str(token), "--slots", str(place.slots)]
    if kind == "javascript":
        own_options = ["--node-id", place.node_id, "--wait-for", str(place.go)]
        with _process([node() or "node", str(FOLDER / "node.js"), *common, *own_options], place) as process:
            yield process
        return
    with model_server(place.go) as base_url:
        own_options = ["--id", place.node_id, "--provider", "model"]
        env = {
            "PENSTOCK_DATA_DIR": str(place.folder),
            "PENSTOCK_PROVIDERS__MODEL__BASE_URL": base_url,
            "PENSTOCK_PROVIDERS__MODEL__API_KEY": "sk-1",
            "PENSTOCK_PROVIDERS__MODEL__MODEL": "echo",
        }
        with _process([COMMAND, "node", *common, *own_options], place, env) as process:
            yield process


@contextmanager
def _process(command: list[str], place: Place, more: dict[str, str] | None = None) -> Iterator[Process]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    with place.log.open("ab") as output:
        process = subprocess.Popen(command, cwd=place.folder, stdout=output, stderr=output, env=own | (more or {}))
    try:
        yield process
    finally:
        process.kill()
        process.wait(_STOP_S)
