import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.providers import gates as provider_gates
from tasks import gates

ROOT = Path(__file__).resolve().parents[3]
FORK_DURING_SYNC = """
import os, threading, time
from tasks import gates

inside = threading.Event()

def sync(_):
    inside.set()
    time.sleep(0.2)
    inside.clear()

gates.gates.sync, gates.gates.publish_defaults = sync, lambda _: None
gates.get_context, gates.SYNC_INTERVAL_S = lambda: None, 0
threading.Thread(target=gates.keep_synced, args=(threading.Event(),), daemon=True).start()
for _ in range(3):
    inside.wait(60)
    pid = os.fork()
    if pid == 0:
        os._exit(int(inside.is_set()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_no_process_is_forked_while_the_gates_are_brought_in_step(tmp_path: Path) -> None:
    env = os.environ | {"PENSTOCK_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK_DURING_SYNC], env=env, check=True, timeout=100)


def test_sync_now_wakes_the_syncing_thread_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: queue.SimpleQueue[None] = queue.SimpleQueue()
    stopped = threading.Event()
    monkeypatch.setattr(gates, "SYNC_INTERVAL_S", 3600)
    monkeypatch.setattr(gates, "get_context", lambda: None)
    monkeypatch.setattr(provider_gates, "publish_defaults", lambda _context: None)
    monkeypatch.setattr(provider_gates, "sync", lambda _context: syncs.put(None))
    thread = threading.Thread(target=gates.keep_synced, args=(stopped,))
    thread.start()
    syncs.get(timeout=60)
    gates.sync_now()
    syncs.get(timeout=60)
    stopped.set()
    gates.sync_now()
    thread.join(60)
    assert not thread.is_alive()
    assert syncs.empty()


def test_gates_are_synced_again_after_an_error_in_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: queue.SimpleQueue[None] = queue.SimpleQueue()
    stopped = threading.Event()

    def sync(_context: object) -> None:
        syncs.put(None)
        raise ValueError("a row that was edited by hand")

    monkeypatch.setattr(gates, "SYNC_INTERVAL_S", 0)
    monkeypatch.setattr(gates, "get_context", lambda: None)
    monkeypatch.setattr(provider_gates, "publish_defaults", lambda _context: None)
    monkeypatch.setattr(provider_gates, "sync", sync)
    thread = threading.Thread(target=gates.keep_synced, args=(stopped,), daemon=True)
    thread.start()
    for _ in range(2):
        syncs.get(timeout=60)
    stopped.set()
    thread.join(60)
    assert not thread.is_alive()
