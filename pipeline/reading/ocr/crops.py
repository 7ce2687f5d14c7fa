"""Parts of a page's picture, for models that read one part at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from pipeline.reading.layout.model import Box, PageContent
from pipeline.reading.ocr import images, layout_model
from pipeline.reading.ocr.rendition import Rendition

_CONTAINED = 0.8
"""From this share of its area on, a region is a part of a larger one."""
_OVERLAP = 0.02
"""How far, as a share of the page, neighbours may reach into each other."""
_SKETCH = 400
_DARKER = 48
_LEAST_INK = 0.01
"""The share of the page's ink that a part without a region must have to be read, too."""
_MOST = 100


def cut(picture: Image.Image, box: Box, turn: int, rendition: Rendition) -> Image.Image:
    """Return a part of a picture, turned anticlockwise, in the size that the rendition asks for."""
    left, top = max(0, int(box[0])), max(0, int(box[1]))
    right, bottom = min(picture.width, round(box[2])), min(picture.height, round(box[3]))
    part = picture.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
    part = part.transpose(images.TURNS[turn]) if turn in images.TURNS else part
    scale = rendition.scale(*part.size, images.MAX_DECODED_PIXELS, is_drawn=False)
    size = rendition.fitted(
        max(1, round(part.width * scale)), max(1, round(part.height * scale)), images.MAX_DECODED_PIXELS
    )
    return part if part.size == size else part.resize(size)


def save_parts(
    path: Path, boxes: Sequence[Sequence[float]], rendition: Rendition, folder: Path
) -> list[dict[str, Any]]:
    """Write parts of the picture at `path` to `folder`; return the path, width and height of each. `boxes`: left, top,
    right, bottom and turn."""
    picture = images.load_picture(path, 1, images.MAX_DECODED_PIXELS)
    saved = []
    for number, (left, top, right, bottom, turn) in enumerate(boxes, 1):
        part = cut(picture, (left, top, right, bottom), int(turn), rendition)
        as_jpeg = rendition.format == "jpeg"
        target = folder / f"part-{number:04d}.{'jpg' if as_jpeg else 'png'}"
        if as_jpeg:
            images.save(part, target, "JPEG", quality=90, subsampling=0)
        else:
            images.save(part, target, "PNG", compress_level=6)
        saved.append({"path": str(target), "width": part.width, "height": part.height})
    return saved


def middle(path: Path) -> int:
    """Return the row, near the middle of a picture, that cuts through the least ink."""
    picture = images.load_picture(path, 1, images.MAX_DECODED_PIXELS)
    ink, scale = _ink(picture)
    rows = ink.sum(axis=1)
    first, last = int(len(rows) * 0.4), max(int(len(rows) * 0.6), int(len(rows) * 0.4) + 1)
    middle_row = len(rows) / 2
    best = min(range(first, last), key=lambda row: (int(rows[row]), abs(row - middle_row)))
    return round((best + 0.5) * scale)


def regions(path: Path, threads: int) -> list[tuple[str, Box]]:
    """Return the regions of a page's picture in reading order, (kind, box in pixels): those of our layout model without
    regions inside others, and the rest of what is printed on the page as `text`; the whole page if there are too many.
    Raises `UnitError`."""
    picture = images.load_picture(path, 1, images.MAX_DECODED_PIXELS)
    if images.is_blank(picture):
        return []
    seen = layout_model.regions(picture, PageContent(picture.width, picture.height, ()), threads)
    kept: list[tuple[str, Box]] = []
    for region in sorted(seen, key=lambda region: -_area(region.box)):
        if all(_shared(region.box, box) < _CONTAINED * _area(region.box) for _, box in kept):
            kept.append((region.kind, region.box))
    kept += [("text", box) for box in _unseen(picture, [box for _, box in kept])]
    if not kept or len(kept) > _MOST:
        return [("text", (0.0, 0.0, float(picture.width), float(picture.height)))]
    margin = _OVERLAP * picture.height
    return _in_order(kept, margin)


def _unseen(picture: Image.Image, boxes: Sequence[Box]) -> list[Box]:
    """Return bands of the page with ink outside of all boxes."""
    ink, scale = _ink(picture)
    whole = int(ink.sum())
    for left, top, right, bottom in boxes:
        ink[int(top / scale) : int(bottom / scale) + 2, int(left / scale) : int(right / scale) + 2] = False
    rows = [int(row) for row in ink.any(axis=1).nonzero()[0]]
    bands: list[list[int]] = []
    for row in rows:
        if bands and row - bands[-1][1] <= _SKETCH // 40:
            bands[-1][1] = row
        else:
            bands.append([row, row])
    found: list[Box] = []
    for first, last in bands:
        band = ink[first : last + 1]
        columns = band.any(axis=0).nonzero()[0]
        if int(band.sum()) >= _LEAST_INK * whole:
            edges = (int(columns[0]) - 2, first - 2, int(columns[-1]) + 3, last + 3)
            found.append((edges[0] * scale, edges[1] * scale, edges[2] * scale, edges[3] * scale))
    return found


def _ink(picture: Image.Image) -> tuple[Any, float]:
    """Return (whether each place of a small copy of the picture differs from its background, pixels for each place)."""
    import numpy as np  # noqa: PLC0415  (most pages do not need it)

    scale = max(1.0, max(picture.size) / _SKETCH)
    size = max(1, round(picture.width / scale)), max(1, round(picture.height / scale))
    grey = np.asarray(picture.convert("L").resize(size, Image.Resampling.BOX), np.int16)
    return np.abs(grey - int(np.median(grey))) > _DARKER // 2, scale


def _in_order(items: list[tuple[str, Box]], margin: float) -> list[tuple[str, Box]]:
    """Return items in reading order: a page is cut into bands from top to bottom, and a band into columns."""
    if len(items) < 2:
        return items
    for first, last in ((1, 3), (0, 2)):  # bands, then columns
        groups = _groups(items, first, last, margin)
        if len(groups) > 1:
            return [item for group in groups for item in _in_order(group, margin)]
    return sorted(items, key=lambda item: (item[1][1], item[1][0]))


def _groups(items: list[tuple[str, Box]], first: int, last: int, margin: float) -> list[list[tuple[str, Box]]]:
    groups: list[list[tuple[str, Box]]] = []
    end = float("-inf")
    for item in sorted(items, key=lambda item: item[1][first]):
        if not groups or item[1][first] >= end - min(margin, (item[1][last] - item[1][first]) / 3):
            groups.append([])
        groups[-1].append(item)
        end = max(end, item[1][last])
    return groups


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _shared(one: Box, other: Box) -> float:
    return _area((max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])))
