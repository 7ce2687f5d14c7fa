"""Clean the regions of a layout model: keep those on the page, without duplicates, few.

Regions are evidence: no text is lost or moved because of a region alone that the lines contradict.
"""

from collections.abc import Iterable, Sequence

from pipeline.reading.layout.model import Box, Line, Region, RegionKind, area

MAX_REGIONS = 80
"""A full newspaper page has about 60."""

_LEAST_SCORE = 0.3
_LEAST_SIDE = 0.002  # of the page's side
_SAME = 0.7  # of both areas together
_INSIDE = 0.8  # of the smaller area


def cleaned(regions: Iterable[Region], width: float, height: float) -> tuple[Region, ...]:
    """Return at most `MAX_REGIONS` regions, clipped to the page, highest score first; of two for the same place, only
    the first. Drops those with a low score."""
    placed = [region._replace(box=_clipped(region.box, width, height)) for region in regions]
    fit = [region for region in placed if _is_sound(region, width, height)]
    kept: list[Region] = []
    for region in sorted(fit, key=lambda region: -region.score):
        if len(kept) == MAX_REGIONS:
            break
        if not any(_repeats(region, surer) for surer in kept):
            kept.append(region)
    return tuple(kept)


def of_kind(regions: Iterable[Region], *kinds: RegionKind) -> list[Region]:
    """Return the regions of these kinds."""
    return [region for region in regions if region.kind in kinds]


def holding(regions: Sequence[Region], item: Line) -> Region | None:
    """Return the smallest region around the middle of the line, if any: a caption rather than its figure."""
    x, y = (item.left + item.right) / 2, (item.top + item.bottom) / 2
    around = [
        region for region in regions if region.box[0] <= x <= region.box[2] and region.box[1] <= y <= region.box[3]
    ]
    return min(around, key=lambda region: area(region.box), default=None)


def covering(regions: Sequence[Region], box: Box, share: float = 0.5) -> Region | None:
    """Return the region that shares the largest area with the box, if that is more than `share` of the box's area;
    otherwise None."""
    best = max(regions, key=lambda region: shared(region.box, box), default=None)
    return best if best and shared(best.box, box) > share * area(box) else None


def shared(box: Box, other: Box) -> float:
    """Return the area that both boxes share."""
    return area((max(box[0], other[0]), max(box[1], other[1]), min(box[2], other[2]), min(box[3], other[3])))


def _clipped(box: Box, width: float, height: float) -> Box:
    left, top, right, bottom = box
    return (max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height))


def _is_sound(region: Region, width: float, height: float) -> bool:
    """Whether the region has an extent and a sufficient score; False for NaN."""
    left, top, right, bottom = region.box
    return right - left > _LEAST_SIDE * width and bottom - top > _LEAST_SIDE * height and region.score >= _LEAST_SCORE


def _repeats(region: Region, surer: Region) -> bool:
    """Whether both regions are the same thing: nearly the same box, or of one kind and one inside the other."""
    both = shared(region.box, surer.box)
    own, other = area(region.box), area(surer.box)
    if both > _SAME * (own + other - both):
        return True
    return region.kind == surer.kind and both > _INSIDE * min(own, other)
