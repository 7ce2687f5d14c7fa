"""The stack starts the newest server, and doctor reports versions with known faults."""

from pathlib import Path

import pytest

from pipeline.standalone.redis_server import find_server
from pipeline.standalone.redis_version import Version, of_program


def server(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "version", "known"),
    [
        ("redis", "6.2.14", True),
        ("redis", "6.2.20", False),
        ("redis", "7.0.15", True),
        ("redis", "7.2.11", False),
        ("redis", "8.2.1", True),
        ("redis", "8.2.2", False),
        ("redis", "8.4.0", False),
        ("redis", "9.0.0", False),
        ("valkey", "7.2.10", True),
        ("valkey", "8.1.4", False),
        ("valkey", "9.0.0", False),
        ("redis", "mine", True),
    ],
)
def test_known_faults(name: str, version: str, known: bool) -> None:
    assert Version.of(version, name).has_known_faults == known


def test_the_newest_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = server(tmp_path / "old", "redis-server", "Redis server v=5.0.7 sha=00000000:0 malloc=libc bits=64")
    new = server(tmp_path / "old", "valkey-server", "Valkey server v=9.0.1 sha=00000000:0 malloc=libc bits=64")
    monkeypatch.setenv("PATH", str(tmp_path / "old"))
    assert str(of_program(old)) == "Redis 5.0.7"
    assert find_server() == str(new)
    new.unlink()
    assert find_server() != str(old)  # the bundled server is newer


def test_none_is_taken_from_the_folder_one_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server(tmp_path, "redis-server", "Redis server v=99.0.0 sha=00000000:0 malloc=libc bits=64")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ":.")
    assert "v=99" not in Path(find_server()).read_bytes()[:200].decode(errors="replace")
