"""Code that a file brought into a reader: what it can still reach."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine import linux, search_path
from pipeline.reading.sandbox import child, child_process
from pipeline.reading.sandbox.limits import Limits
from tests.support.readers import readers
from tests.support.samples import text_pdf

_NOBODY = 65534

pytestmark = pytest.mark.skipif(not linux.IS_LINUX, reason="the kernel of Linux alone confines readers")


@pytest.fixture
def attackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process use readers that attack."""
    child.close_idle()
    child_process.end_server()
    monkeypatch.setattr(child_process, "_servers", [])
    command = [sys.executable, "-m", "tests.hostile.attacking_reader", str(tmp_path / "readers.sock")]
    with subprocess.Popen(command, env=child_process.environment(), stdin=subprocess.PIPE) as server:
        child_process.use_server(tmp_path / "readers.sock", 60)
        yield
        child.close_idle()
        assert server.stdin
        server.stdin.close()


@pytest.mark.usefixtures("attackers")
def test_code_in_a_reader_reaches_neither_keys_nor_other_files_nor_the_network(tmp_path: Path) -> None:
    if "Landlock" not in " ".join(child.defences()):
        pytest.skip("this kernel has no Landlock")
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    for folder in (data, scratch):
        folder.mkdir()
    source, other, database = (data / name for name in ("source.txt", "other.txt", "penstock.db"))
    for file in (source, other, database):
        file.write_text("its own text")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as supervisor,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        task = {
            "task": "attack",
            "path": str(source),
            "writes": [str(scratch)],
            "supervisor": supervisor.pid,
            "other": str(other),
            "database": str(database),
            "proof": str(tmp_path / "proof"),
            "port": receiver.getsockname()[1],
        }
        try:
            answer = child.run(task, "source.txt", Limits())
        finally:
            supervisor.kill()
        with pytest.raises(BlockingIOError):
            receiver.recv(16)
    assert (answer["achieved"], answer["last"]) == ([], False)
    assert not (tmp_path / "proof").exists()
    assert (scratch / "kept.txt").read_text() == source.read_text() == "its own text"


def test_a_reader_serves_one_document_and_ends_with_a_password(tmp_path: Path) -> None:
    child.close_idle()
    one, two = (text_pdf(tmp_path / name, [[name]]) for name in ("one.pdf", "two.pdf"))
    by: list[set[int]] = []
    for path in (one, one, two):
        child.run({"task": "units", "path": str(path)}, path.name, Limits())
        by.append({reader.pid for reader in readers()})
    first, again, other = by
    assert first == again
    assert len(other - first) == 1
    child.close_idle()
    task = {"task": "decrypt", "path": str(one), "target": "", "password": "secret"}
    child.ask_about_file(task, one.name, lambda: True, Limits(), secret=True)
    assert readers() == []


def test_processes_with_keys_are_closed_to_other_processes() -> None:
    root = os.geteuid() == 0
    program = (
        "import os, sys; from pipeline.engine import linux, privacy\n"
        f"if not os.geteuid(): os.setgroups([]); os.setresgid(*[{_NOBODY}] * 3); os.setresuid(*[{_NOBODY}] * 3)\n"
        "linux.set_dumpable(True)\n"  # as a program that this user started
        "privacy.begin()\n"
        "print(next(iter(__import__('pathlib').Path('/proc/self/fd').iterdir())).readlink(), flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=search_path.environment() | {"PENSTOCK_KEY": "secret"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline(), "it may not see its own files"
        for user in (_NOBODY, _NOBODY - 1) if root else (None,):
            for name in ("environ", "mem", "maps", "fd"):
                path = f"/proc/{holder.pid}/{name}"
                done = subprocess.run(
                    ["ls" if name == "fd" else "cat", path], user=user, group=user, capture_output=True, check=False
                )
                assert b"Permission denied" in done.stderr, (user, name, done)
        holder.stdin.close()
