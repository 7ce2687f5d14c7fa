from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, queries
from pipeline.flows.documents.page_pictures import MAX_DPI, MIN_DPI, picture
from pipeline.reading import inspection
from pipeline.settings import Settings


@pytest.mark.parametrize(
    ("dpi", "rendered"),
    [(100.4, 100), (0, MIN_DPI), (-1e300, MIN_DPI), (1e300, MAX_DPI), (float("inf"), MAX_DPI), (float("nan"), MIN_DPI)],
)
def test_any_number_is_a_resolution_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dpi: float, rendered: int
) -> None:
    asked: list[tuple[int, str]] = []

    def render(*given: Any) -> None:
        asked.append((given[5], given[4].name))

    document = SimpleNamespace(type="pdf", filename="a.pdf")
    context: Any = SimpleNamespace(settings=Settings(data_dir=tmp_path))
    source = files.source_path(context.settings, "d", "pdf")
    source.parent.mkdir(parents=True)
    source.touch()
    monkeypatch.setattr(queries, "document", lambda *_: document)
    monkeypatch.setattr(queries, "page", lambda *_: SimpleNamespace(page_source=3))
    monkeypatch.setattr(inspection, "render", render)
    with pytest.raises(UserError, match="cannot be shown now"):
        picture(context, "d", 1, dpi, lambda: True)
    assert asked == [(rendered, f"page-00003-{rendered}.png")]
