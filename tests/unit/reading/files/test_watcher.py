"""A watched folder yields each picture once, as soon as it is complete, whatever else happens in the folder."""

import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.frames.files import is_picture
from pipeline.reading.files.watcher import watch
from tests.support.frames import encoded, noise
from tests.support.waiting import wait_until

PICTURE = encoded(noise("one"))
LIMIT_S = 30


class Watched:
    """A folder watched by a thread. `next()` returns the next picture's name."""

    def __init__(self, folder: Path, **options: bool) -> None:
        self.folder = folder
        self.stop = threading.Event()
        self.results: queue.Queue[Path | UserError] = queue.Queue()
        self.paths = watch(folder, is_picture, self.stop, settle_s=0.3, **options)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for path in self.paths:
                self.results.put(path)
        except UserError as error:
            self.results.put(error)

    def next(self) -> str:
        path = self.results.get(timeout=LIMIT_S)
        assert isinstance(path, Path), path
        return path.name

    def put(self, name: str, data: bytes = PICTURE) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


Start = Callable[..., Watched]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Watched] = []

    def start(**options: bool) -> Watched:
        folder = tmp_path / "shots"
        folder.mkdir(exist_ok=True)
        started.append(Watched(folder, **options))
        return started[-1]

    yield start
    for watched in started:
        watched.stop.set()
        watched.thread.join(LIMIT_S)
        assert not watched.thread.is_alive()


def test_new_pictures_come_and_old_ones_and_other_files_do_not(tmp_path: Path, start: Start) -> None:
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "old.png").write_bytes(PICTURE)
    watched = start()
    for name in (".hidden.png", "notes.txt", "half.png.part", "~x.png"):
        watched.put(name)
    (watched.folder / "folder.png").mkdir()
    os.mkfifo(watched.folder / "pipe.png")
    (tmp_path / "private.png").write_bytes(PICTURE)
    (watched.folder / "leaves.png").symlink_to(tmp_path / "private.png")
    watched.put("new.PNG")
    assert watched.next() == "new.PNG"
    watched.put("later.jpg")
    assert watched.next() == "later.jpg"
    assert watched.results.empty()


def test_existing_pictures_come_first_on_request_in_the_order_of_their_times(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "shots"
    folder.mkdir()
    for number, name in enumerate(("b.png", "a.png")):
        (folder / name).write_bytes(PICTURE)
        os.utime(folder / name, (1000 + number, 1000 + number))
    watched = start(existing=True)
    assert [watched.next(), watched.next()] == ["b.png", "a.png"]


def test_a_slowly_written_picture_is_yielded_when_it_is_complete(start: Start) -> None:
    watched = start()
    path = watched.folder / "slow.png"
    written = 0
    with path.open("wb") as file:
        for begin in range(0, len(PICTURE), 500):
            file.write(PICTURE[begin : begin + 500])
            file.flush()
            written += 1
            threading.Event().wait(0.1)
            assert watched.results.empty() or written * 500 >= len(PICTURE)
    assert watched.next() == "slow.png"
    assert path.read_bytes() == PICTURE


def test_a_picture_that_is_moved_into_place_or_written_anew_comes(start: Start, tmp_path: Path) -> None:
    watched = start()
    (tmp_path / "made.png").write_bytes(PICTURE)
    shutil.move(tmp_path / "made.png", watched.folder / "moved.png")
    assert watched.next() == "moved.png"
    watched.put("moved.png", PICTURE + b"more")
    assert watched.next() == "moved.png"


def test_a_file_deleted_before_it_is_complete_is_ignored(start: Start) -> None:
    watched = start()
    watched.put("gone.png").unlink()
    watched.put("stays.png")
    assert watched.next() == "stays.png"


def test_many_at_once_come_once_each(start: Start) -> None:
    watched = start()
    names = {watched.put(f"{number}.png").name for number in range(50)}
    assert {watched.next() for _ in names} == names
    assert watched.results.empty()


def test_a_missing_or_deleted_watched_folder_is_an_error(start: Start, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a folder"):
        watch(tmp_path / "none", is_picture, threading.Event())
    watched = start()
    shutil.rmtree(watched.folder)
    wait_until(lambda: not watched.thread.is_alive(), LIMIT_S, "the end of watching")
    assert isinstance(watched.results.get_nowait(), UserError)


@pytest.mark.parametrize(("name", "good"), [("a.png", True), ("a.JPEG", True), (".a.png", False), ("a.png~", False)])
def test_names_tell_pictures(name: str, good: bool) -> None:
    assert is_picture(Path(name)) is good
