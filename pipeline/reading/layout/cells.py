"""Cut lines at the borders of table columns into cells, and read a cell's text."""

from bisect import bisect_right
from collections.abc import Sequence
from statistics import median

from pipeline.reading.layout.model import Cell, Line, Runs, Span
from pipeline.reading.layout.paragraphs import joined
from pipeline.reading.layout.rows import line_tokens, rows, runs_of


def spans_of(line: Line) -> tuple[Span, ...]:
    """Return the words of a line with their places; if unknown, assume that all characters are equally wide."""
    if line.spans:
        return line.spans
    tokens = line_tokens(line)
    if len(line.places) == 2 * len(tokens) and line.angle == 0:
        share = (line.right - line.left) / 1000
        edges = [line.left + place * share for place in line.places]
        words = zip(tokens, edges[::2], edges[1::2], strict=True)
        return tuple(Span(token.text, left, right, token.style) for token, left, right in words)
    text = line.text
    each = (line.right - line.left) / max(len(text), 1)
    spans, start = [], 0
    for token in tokens:
        at = text.index(token.text, start)
        start = at + len(token.text)
        spans.append(Span(token.text, line.left + at * each, line.left + start * each, token.style))
    return tuple(spans)


def sub_line(line: Line, spans: Sequence[Span]) -> Line:
    """Return the part of a line that consists of these words of it."""
    text = "".join(f" {span.text}" if span.spaced else span.text for span in spans).strip()
    left, right = min(span.left for span in spans), max(span.right for span in spans)
    return line._replace(text=text, left=left, right=right, spans=tuple(spans))


def cut(line: Line, borders: Sequence[float]) -> list[tuple[int, Line]]:
    """Cut a line at these x into (column from 0, part of the line); a word's middle decides its column."""
    if bisect_right(borders, line.left) == bisect_right(borders, line.right):
        return [(bisect_right(borders, line.left), line)]
    pieces: list[tuple[int, list[Span]]] = []
    for span in spans_of(line):
        column = bisect_right(borders, (span.left + span.right) / 2)
        if pieces and pieces[-1][0] == column:
            pieces[-1][1].append(span)
        else:
            pieces.append((column, [span]))
    return [(column, sub_line(line, spans)) for column, spans in pieces]


def text_size(lines: Sequence[Line]) -> float:
    """Return the median size of the lines' text, in the page's unit; 10 without lines."""
    return max(median(line.size for line in lines), 0.1) if lines else 10.0


def cell_runs(lines: Sequence[Line]) -> Runs:
    """Return the text of all lines in a cell."""
    return runs_of(joined(rows(lines)))


def without_empty(table: list[list[Cell]]) -> list[tuple[Cell, ...]]:
    """Return the rows that have text, and empty rows into which a cell from above reaches."""
    kept, reaching = [], 0
    for row in table:
        if any(cell.runs for cell in row) or reaching > 0:
            kept.append(tuple(row))
        reaching = max([reaching - 1, *(cell.rows - 1 for cell in row)], default=0)
    return kept
