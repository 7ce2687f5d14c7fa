"""Penstock closes its own folders, leaves shared and foreign ones, and gives results the user's modes."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine import privacy

NOBODY = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data_folder = tmp_path / "data"
    data_folder.mkdir()
    data_folder.chmod(0o755)
    return data_folder


@pytest.fixture(autouse=True)
def _umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(privacy, "_users_umask", [])
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_folder_that_was_open_is_shut(folder: Path) -> None:
    assert privacy.is_open(folder)
    assert privacy.close(folder)
    assert mode(folder) == 0o700
    assert privacy.close(folder)


def test_a_missing_folder_needs_no_closing(tmp_path: Path) -> None:
    assert privacy.close(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_in_a_shared_folder_only_our_own_files_are_closed(folder: Path) -> None:
    folder.chmod(0o1777)
    (folder / "penstock.db").touch(0o644)
    (folder / "output").mkdir(0o755)
    (folder / "theirs.txt").touch(0o644)
    (folder / "uploads").symlink_to(folder / "theirs.txt")
    assert not privacy.close(folder, ("penstock.db", "output", "uploads", "none"))
    assert mode(folder) == 0o1777
    assert (mode(folder / "penstock.db"), mode(folder / "output")) == (0o600, 0o700)
    assert mode(folder / "theirs.txt") == 0o644


def test_home_and_links_stay_as_they_are(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert not privacy.close(link)
    monkeypatch.setenv("HOME", str(folder))
    assert not privacy.close(folder)
    assert mode(folder) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_users_folder_is_left_alone(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)
    assert not privacy.close(folder)
    assert mode(folder) == 0o755


def test_results_have_the_modes_of_the_user_s_umask(tmp_path: Path) -> None:
    privacy.begin()
    privacy.begin()  # a second call keeps the umask of the first
    created = tmp_path / "a" / "b"
    privacy.make_users_folder(created)
    assert [mode(path) for path in (created.parent, created)] == [0o755, 0o755]
    assert privacy.users_mode(0o666) == 0o644
    tmp_path.chmod(0o750)
    privacy.make_users_folder(tmp_path)
    assert mode(tmp_path) == 0o750
    (tmp_path / "private").touch()
    assert mode(tmp_path / "private") == 0o600
