"""The server that forks readers: shared modules, separate descriptors, and the death of either side."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.engine import search_path
from pipeline.engine.errors import UnitError
from pipeline.reading.sandbox import child, child_process
from pipeline.reading.sandbox.limits import Limits
from pipeline.reading.text.text_files import read_file
from tests.support.readers import started
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not child_process.FORKS, reason="children are forked on Linux alone")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Popen]:
    """Start a server for this process, from a parent with a secret."""
    monkeypatch.setenv("PENSTOCK_PROVIDERS__AI__API_KEY", "sk-secret")
    child.close_idle()
    child_process.end_server()
    monkeypatch.setattr(child_process, "_servers", [])
    socket = tmp_path / "readers.sock"
    with psutil.Popen(
        search_path.program("pipeline.reading.sandbox.child_server", str(socket)),
        env=child_process.environment(),
        stdin=subprocess.PIPE,
    ) as process:
        child_process.use_server(socket, 60)
        yield process
        child.close_idle()


def read(folder: Path) -> str:
    page = folder / "page.html"
    if not page.exists():  # the same child reads an unchanged file again
        page.write_text("<p>some words</p>")
    return read_file(page, page.name, Limits(), lambda: True).text


def readers(server: psutil.Popen) -> list[psutil.Process]:
    return server.children()


def descriptors(process: psutil.Process) -> dict[int, str]:
    folder = Path(f"/proc/{process.pid}/fd")
    return {int(descriptor.name): str(descriptor.readlink()) for descriptor in folder.iterdir()}


def test_children_share_the_servers_modules_and_no_descriptors_or_secrets_of_callers(
    server: psutil.Popen, tmp_path: Path
) -> None:
    assert "some words" in read(tmp_path)
    assert "some words" in read(tmp_path)
    (reader,) = readers(server)
    assert server.num_threads() == 1, "the server has threads, which its forks would lose"
    opened = descriptors(reader)
    assert all(where.startswith("pipe:") or where == os.devnull for where in opened.values()), opened
    assert not set(opened.values()) & set(descriptors(server).values()) - {os.devnull}
    for process in (server, reader):
        assert b"sk-secret" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    child.close_idle()
    wait_until(lambda: not readers(server), 60, "the reader has ended")
    wait_until(lambda: len(descriptors(server)) == 5, 60, "nothing of it is left", last=lambda: descriptors(server))


def test_the_caller_learns_the_signal_that_ended_a_child(server: psutil.Popen, tmp_path: Path) -> None:
    read(tmp_path)
    (reader,) = readers(server)
    reader.send_signal(signal.SIGSTOP)
    with child.Session() as session:
        session._child = child._pool.idle.pop()
        process = session._child.process
        assert process.poll() is None
        reader.send_signal(signal.SIGSEGV)
        reader.send_signal(signal.SIGCONT)
        assert process.wait() == -signal.SIGSEGV
        assert process.poll() == -signal.SIGSEGV


def test_when_the_server_is_killed_its_children_go_on_and_the_next_is_started(
    server: psutil.Popen, tmp_path: Path
) -> None:
    read(tmp_path)
    (reader,) = readers(server)
    child_process.use_server(tmp_path / "readers.sock")  # without waiting
    server.kill()
    wait_until(lambda: reader.ppid() != server.pid, 60, "the server has ended")
    assert "some words" in read(tmp_path)
    assert not started(), "a new child was started"
    reader.kill()
    with suppress(UnitError):  # the task may or may not have started before the death
        read(tmp_path)
    assert "some words" in read(tmp_path)
    assert started()


def test_the_server_ends_with_the_process_that_started_it(server: psutil.Popen, tmp_path: Path) -> None:
    read(tmp_path)
    server.stdin.close()
    assert server.wait(60) == 0
    assert "some words" in read(tmp_path), "the existing child does not read on"


def test_a_process_whose_own_server_was_killed_starts_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child.close_idle()
    child_process.end_server()
    monkeypatch.setattr(child_process, "_servers", [])
    assert "some words" in read(tmp_path)
    ((own, _),) = child_process._own
    child.close_idle()
    own.kill()
    assert "some words" in read(tmp_path)  # by a program
    child.close_idle()
    assert "some words" in read(tmp_path)
    ((other, _),) = child_process._own
    assert other.poll() is None
    assert not started()
    child.close_idle()
    child_process.end_server()
