"""Penstock opens only ordinary files, and never waits for one."""

import errno
import os
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.reading.files import user_file
from pipeline.reading.files.user_file import NotOrdinary, is_file_below, open_file, walk


def _socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.path.relpath(path))  # the system's limit is 107 bytes


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, _socket, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_that_may_block_is_not_opened(
    tmp_path: Path, make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.mp3"
    make(path)
    with pytest.raises(NotOrdinary):
        open_file(path)


def test_a_file_that_becomes_a_pipe_after_the_check_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "x.png")
    check, checks = user_file._check, []

    def swapped(path: Path, facts: os.stat_result, *, links: bool = False) -> None:
        checks.append(path)
        if len(checks) > 1:
            check(path, facts, links=links)

    monkeypatch.setattr(user_file, "_check", swapped)
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    with pytest.raises(NotOrdinary):
        open_file(tmp_path / "x.png")
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before


def test_links_are_followed_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "link").symlink_to("a")
    with open_file(tmp_path / "link") as file:
        assert file.read() == b"text"
    with pytest.raises(OSError, match="symbolic links") as error:
        open_file(tmp_path / "link", follow=False)
    assert error.value.errno == errno.ELOOP


def test_no_link_on_a_files_way_may_lead_out_of_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.pdf").touch()
    (inside / "folder").symlink_to(outside)
    (inside / "same").symlink_to(inside)
    (inside / "leaves.pdf").symlink_to(outside / "a.pdf")
    here = {
        name for name in ("a.pdf", "same/a.pdf", "folder/a.pdf", "leaves.pdf") if is_file_below(inside / name, inside)
    }
    assert here == {"a.pdf", "same/a.pdf"}


def test_nested_folders_of_any_depth_are_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deepest = tmp_path.joinpath(*["d"] * 300)
    deepest.mkdir(parents=True)
    (deepest / "bottom.pdf").touch()
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_depth() + 100)
    try:
        files = [Path(parent, name) for parent, _, names in walk(tmp_path) for name in names]
    finally:
        sys.setrecursionlimit(before)
    assert files == [tmp_path / "circle", deepest / "bottom.pdf"]


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def test_an_unreadable_folder_is_reported_and_the_others_are_walked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    messages: list[str] = []
    seen = []
    for parent, folders, _ in walk(tmp_path, lambda error: messages.append(str(error.filename))):
        seen.append(parent)
        if parent == tmp_path:
            (tmp_path / "a").rmdir()
            folders.sort()
    assert (seen, messages) == ([tmp_path, tmp_path / "b"], [str(tmp_path / "a")])
