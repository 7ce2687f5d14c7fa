"""Draw a page for a model, as often and in such parts as it needs, in child processes."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.reading.ocr.rendition import Picture, Rendition
from pipeline.reading.pdf.pages import Pages
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits

Box = tuple[float, float, float, float]

_DRAWING = threading.BoundedSemaphore(os.cpu_count() or 1)
"""A provider's lanes are many threads, but each drawing takes a core and a process."""


class Drawing:
    """One page of a stored file. `folder`: for its pictures."""

    def __init__(self, source: Path, number: int, folder: Path, limits: Limits, max_pixels: int) -> None:
        self._source = source
        self._number = number
        self._folder = folder
        self._limits = limits
        self._max_pixels = max_pixels

    def draw(self, rendition: Rendition, folder: str = "") -> Path:
        """Draw the page into a `folder` within this page's, and return the picture's path. Raises `UnitError`."""
        target = self._folder / folder
        target.mkdir(parents=True, exist_ok=True)
        with _DRAWING, Pages(self._source, self._limits) as pages:
            return pages.render(self._number, target, rendition, self._max_pixels)

    def regions(self, image: Path) -> list[tuple[str, Box]]:
        """Return the regions that our layout model sees in the page's picture, in reading order: (kind, box in pixels).
        Raises `UnitError`."""
        answer = self._ask({"task": "page_regions", "path": str(image)})
        return [(str(kind), (left, top, right, bottom)) for kind, (left, top, right, bottom) in answer["regions"]]

    def middle(self, image: Path) -> int:
        """Return the row in the middle of the page's picture that cuts through the least ink. Raises `UnitError`."""
        return int(self._ask({"task": "page_middle", "path": str(image)})["row"])

    def parts(self, image: Path, boxes: Sequence[tuple[Box, int]], rendition: Rendition) -> list[Picture]:
        """Return parts of the page's picture: (box in pixels, degrees to turn it anticlockwise). Raises `UnitError`."""
        places = [[*box, turn] for box, turn in boxes]
        with TemporaryDirectory(prefix="parts-", dir=image.parent) as folder:
            task = {"task": "page_parts", "path": str(image), "boxes": places, "folder": folder, "writes": [folder]}
            answer = self._ask({**task, "rendition": asdict(rendition)})
            media_type = "image/jpeg" if rendition.format == "jpeg" else "image/png"
            return [
                Picture(Path(part["path"]).read_bytes(), media_type, part["width"], part["height"])
                for part in answer["parts"]
            ]

    def _ask(self, task: dict[str, Any], wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
        with _DRAWING:
            return child.ask_about_file(task, f"the picture of page {self._number}", wanted, self._limits, "")
