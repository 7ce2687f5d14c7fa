"""Small SVG charts of time series, as columns or lines; attributes alone draw them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

HEIGHT = 60.0


@dataclass(frozen=True)
class Column:
    """A column, its boxes from the bottom up; `title` covers the whole slot."""

    x: int
    title: str
    boxes: list[tuple[str, float, float]]
    """(class, y, height)."""


@dataclass(frozen=True)
class Chart:
    """A chart in a box of `width` by `HEIGHT`."""

    width: int
    columns: list[Column]
    lines: list[tuple[str, str]]
    """(class, points of a polyline); a gap in the moments starts a new polyline."""
    most: float
    """The value at the top."""
    summary: str


def columns(values: Sequence[Sequence[float]], classes: Sequence[str], titles: Sequence[str], summary: str) -> Chart:
    """Return a chart of stacked columns.

    `values`: for each column, one number per class; `classes`: the CSS classes, the lowest box first; `titles`: the
    text of each column; `summary`: the text that describes the whole chart.
    """
    most = max((sum(column) for column in values), default=0)
    drawn = []
    for at, (parts, title) in enumerate(zip(values, titles, strict=True)):
        boxes, top = [], HEIGHT
        for css, value in zip(classes, parts, strict=True):
            if value:
                height = max(1.0, value / most * HEIGHT)
                top -= height
                boxes.append((css, round(max(0.0, top), 2), round(height, 2)))
        drawn.append(Column(at, title, boxes))
    return Chart(len(values), drawn, [], most, summary)


def lines(
    values: Sequence[Sequence[float | None]], classes: Sequence[str], titles: Sequence[str], summary: str
) -> Chart:
    """Return a chart with one line for each class.

    `values`: for each moment, one number per class; None interrupts the line. `titles`: the text of each moment;
    `summary`: the text that describes the whole chart.
    """
    most = max((point for series in values for point in series if point is not None), default=0)
    slots = [Column(at, title, []) for at, title in enumerate(titles)]

    def place(value: float) -> float:
        return round(HEIGHT - 1 - value / most * (HEIGHT - 2), 2) if most else HEIGHT - 1

    drawn = [
        (css, " ".join(f"{at},{y}" for at, y in run))
        for number, css in enumerate(classes)
        for run in _runs([series[number] for series in values], place)
    ]
    return Chart(len(values), slots, drawn, most, summary)


def _runs(values: Sequence[float | None], place: Callable[[float], float]) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of each run of values without None; a single value becomes a short level line. `place`: a
    value's height."""
    run: list[tuple[float, float]] = []
    for at, value in enumerate([*values, None]):
        if value is not None:
            run.append((at + 0.5, place(value)))
        elif run:
            yield run if len(run) > 1 else [(run[0][0] - 0.4, run[0][1]), (run[0][0] + 0.4, run[0][1])]
            run = []
