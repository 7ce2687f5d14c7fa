"""The space that a folder takes."""

from pathlib import Path

from pipeline.storage.footprint import footprint


def test_files_are_counted_and_links_not_followed(tmp_path: Path) -> None:
    inner = tmp_path / "data" / "inner"
    inner.mkdir(parents=True)
    (inner / "a").write_bytes(b"x" * 700)
    (tmp_path / "outside").write_bytes(b"x" * 9000)
    (inner / "away").symlink_to(tmp_path)
    size = footprint(tmp_path / "data", 60)
    assert (size.files, size.is_whole) == (2, True)
    assert 700 <= size.counted < 2000
    assert 0 < size.free < size.disk


def test_a_footprint_past_its_time_limit_is_partial(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert not footprint(tmp_path, 0).is_whole
