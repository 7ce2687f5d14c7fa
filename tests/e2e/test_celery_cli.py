"""Celery's own programs behind `penstock`: an idle worker, and Flower beside a running stack."""

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Running, new_pdf
from tests.support.provider_server import ProviderServer
from tests.support.screenshots import desk
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / ".env.example"
PAGES = 6


@pytest.mark.parametrize(
    ("role", "setting", "end"),
    [
        ("ai", "PENSTOCK_PROVIDERS__<NAME>__API_KEY", signal.SIGTERM),
        ("capture", "PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES", signal.SIGINT),
    ],
)
def test_a_worker_without_work_names_the_settings_and_waits_until_it_is_stopped(
    alone: Cli, role: str, setting: str, end: int
) -> None:
    shipped = dict(re.findall(r"^(PENSTOCK_\w+)=(.*)$", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE))
    unset = {name: None for name in alone.env if name.startswith("PENSTOCK_PROVIDERS__")}
    worker = alone.using(**unset, **shipped).start("worker", "--role", role)
    worker.wait_for("Waiting for a signal to stop.")
    assert setting in worker.output
    assert len(worker.output.splitlines()) == 1
    assert worker.process.poll() is None
    os.kill(worker.process.pid, end)
    assert worker.wait() == 0


class Flower:
    """Flower's HTTP API."""

    def __init__(self, process: Running, port: int) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}/api"

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer; an empty mapping while Flower starts."""
        assert self._process.process.poll() is None, self._process.output
        try:
            with urllib.request.urlopen(f"{self._url}/{path}", timeout=10) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}


@pytest.fixture
def monitored(alone: Cli) -> Iterator[Cli]:
    """`penstock up` with events and a message for each page."""
    captures = {"PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES": '["screen:*"]', "PENSTOCK_SCREENSHOTS__BATCH_SIZE": "1"}
    cli = alone.using(
        PENSTOCK_WORKER_EVENTS="true",
        PENSTOCK_PROVIDERS__AI__CONCURRENCY="2",
        PENSTOCK_DOCUMENTS__QUANTUM_S="0",
        PENSTOCK_SWEEP_INTERVAL_S="600",  # on a busy machine a sweep would replace messages as lost
        DISPLAY=None,
        WAYLAND_DISPLAY=None,
        **captures,
    )
    up = cli.start("up")
    up.wait_for("Penstock is up")
    yield cli
    up.interrupt()
    assert up.wait() == 0, up.output


@pytest.fixture
def flower(monitored: Cli) -> Iterator[Flower]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = monitored.using(FLOWER_UNAUTHENTICATED_API="true").start(
        "flower", f"--port={port}", "--address=127.0.0.1"
    )
    client = Flower(process, port)
    wait_until(lambda: client.get("workers?status=true"), 90, "Flower answers", last=lambda: process.output)
    yield client
    process.interrupt()
    process.wait()


def test_flower_shows_live_workers_and_a_task_for_each_hop(
    monitored: Cli, flower: Flower, provider: ProviderServer
) -> None:
    def alive() -> bool:
        return sorted(name.partition("@")[0] for name, up in flower.get("workers?status=true").items() if up) == [
            "ai",
            "capture",
            "control",
            "cpu",
        ]

    wait_until(alive, 90, "four workers are alive", last=lambda: flower.get("workers?status=true"))
    new_pdf(monitored.cwd / "report.pdf", PAGES)
    assert monitored.run("convert", "report.pdf", "--provider", "ai").code == 0
    assert len(provider.records) == PAGES

    def hops() -> dict[str, Any]:
        tasks = flower.get("tasks?limit=1000")
        return {name: task for name, task in tasks.items() if task["name"] == "documents.lane"}

    def all_ended() -> bool:
        lanes = hops()
        return len(lanes) >= PAGES and {task["state"] for task in lanes.values()} == {"SUCCESS"}

    wait_until(all_ended, 90, "each page is a hop that has ended", last=hops)
    assert {task["result"] for task in hops().values()} >= {"'1 page'"}
    _assert_one_tree(flower, "documents.split", {"documents.lane", "documents.merge"})
    inspected = monitored.execute([sys.executable, "-m", "celery", "-A", "tasks", "inspect", "gates", "--json"])
    assert inspected.code == 0, inspected.err
    assert set(map(str, json.loads(inspected.out).values())) == {"{}"}, "no worker skips a queue because of a gate"

    # Beat sends captures. A task batches an added frame.
    desk(monitored.cwd / "desk.png", "Invoice")
    assert monitored.run("screenshots", "add", "desk.png", "--no-wait").code == 0

    def names() -> set[str]:
        return {task["name"] for task in flower.get("tasks?limit=1000").values() if task["state"] == "SUCCESS"}

    wait_until(lambda: {"screenshots.capture", "screenshots.batch"} <= names(), 90, "Flower has both tasks", last=names)
    wait_until(lambda: "screenshots.expand" in names(), 90, "the frame is analysed", last=names)
    _assert_one_tree(
        flower, "screenshots.begin", {"screenshots.analyse", "screenshots.merge_shards", "screenshots.expand"}
    )
    (monitored.cwd / "pumps.md").write_text("# Pumps\n\nA pump moves water.\n")
    assert monitored.run("kb", "create", "manuals").code == 0
    assert monitored.run("kb", "add", "manuals", "pumps.md", "--wait").code == 0
    wait_until(lambda: "knowledge.write" in names(), 90, "the item is written", last=names)
    _assert_one_tree(flower, "knowledge.read", {"knowledge.embed", "knowledge.write"})


def _assert_one_tree(flower: Flower, first: str, steps: set[str]) -> None:
    """Check that the tree of the newest task `first` has these steps, each under another task of the tree."""
    tasks = flower.get("tasks?limit=1000")
    root = max((task for task in tasks.values() if task["name"] == first), key=lambda task: task["received"] or 0)
    tree = {name: task for name, task in tasks.items() if task["root_id"] == root["root_id"]}
    assert {task["name"] for task in tree.values()} >= steps, tree
    assert not [task for task in tree.values() if task["parent_id"] not in {*tree, None}]
    assert [name for name, task in tree.items() if task["parent_id"] is None] == [root["root_id"]]
