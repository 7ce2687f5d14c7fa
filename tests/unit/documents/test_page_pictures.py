import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, queries
from pipeline.flows.documents.page_pictures import MAX_DPI, MIN_DPI, Rendering, make_room, picture, shape
from pipeline.reading.pdf import inspection
from pipeline.settings import Settings


@pytest.mark.parametrize(
    ("dpi", "rendered"),
    [(100.4, 100), (0, MIN_DPI), (-1e300, MIN_DPI), (1e300, MAX_DPI), (float("inf"), MAX_DPI), (float("nan"), MIN_DPI)],
)
def test_any_number_is_a_resolution_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpi: float, rendered: int
) -> None:
    sizes: list[tuple[int, str]] = []

    def render(*arguments: Any, **_: Any) -> None:
        sizes.append((arguments[5], arguments[4].name))

    document = SimpleNamespace(type="pdf", filename="a.pdf", holds_text=False)
    context: Any = SimpleNamespace(settings=Settings(data_dir=tmp_path))
    source = files.source_path(context.settings, "d", "pdf")
    source.parent.mkdir(parents=True)
    source.touch()
    monkeypatch.setattr(queries, "document", lambda *_: document)
    monkeypatch.setattr(queries, "page_source", lambda *_: 3)
    monkeypatch.setattr(inspection, "render", render)
    with pytest.raises(UserError, match="cannot be shown now"):
        picture(context, "d", 1, Rendering(dpi))
    assert sizes == [(rendered, f"page-00003-{rendered}.png")]


def test_the_pictures_not_looked_at_for_longest_go_first(tmp_path: Path) -> None:
    for age, name in enumerate(("a/page-1.webp", "b/page-1.webp", "a/page-2.webp", "b/page-2.webp")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "empty").mkdir()
    os.utime(tmp_path / "empty", (1000, 1000))
    (tmp_path / "new").mkdir()
    make_room(tmp_path, 400)
    assert sum(1 for path in tmp_path.glob("*/*")) == 4
    make_room(tmp_path, 250)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")) == [
        "a/page-1.webp",
        "b/page-1.webp",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "new"]


def test_the_shape_of_a_picture_is_known_once_one_was_made(tmp_path: Path) -> None:
    context: Any = SimpleNamespace(settings=Settings(data_dir=tmp_path))
    assert shape(context, "d", 2) is None
    folder = files.views_folder(context.settings, "d")
    folder.mkdir(parents=True)
    Image.new("RGB", (300, 200)).save(folder / "page-00001-w300.webp", quality=80)
    (folder / "page-00003-w300.webp").write_bytes(b"nothing")
    assert shape(context, "d", 1) == (300, 200)
    assert shape(context, "d", 2) == (300, 200)
    assert shape(context, "d", 3) == (300, 200)


@pytest.mark.parametrize(
    ("size", "shown"), [((900, 450), (180, 90)), ((90, 45), (90, 45)), ((20, 60_000), (5, 16_383))]
)
def test_a_picture_file_is_shown_at_most_so_wide(tmp_path: Path, size: tuple[int, int], shown: tuple[int, int]) -> None:
    source, target = tmp_path / "a.png", tmp_path / "views" / "page.webp"
    Image.new("RGB", size, "white").save(source)
    inspection.render(source, "a.png", "png", 1, target, 100, 25_000_000, width=180, gentle=True)
    with Image.open(target) as picture:
        assert picture.size == shown
