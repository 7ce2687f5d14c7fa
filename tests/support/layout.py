"""Lines and pages for tests of the layout. Boxes are in points and have the length of text of that size."""

from pipeline.reading.layout.model import PLAIN, Line, Rule, Span, Style
from pipeline.reading.layout.page import PageContent

BOLD = Style(bold=True)
ITALIC = Style(italic=True)
MONO = Style(mono=True)


def line(text, left, top, size=10.0, style=PLAIN, right=None):
    """Return a line of words in one style. Without `right`, a character is half as wide as the text is high."""
    each = 0.5 * size if right is None else (right - left) / len(text)
    spans, at = [], left
    for word in text.split():
        spans.append(Span(word, at, at + each * len(word), style))
        at = spans[-1].right + each
    return Line(text, left, top, spans[-1].right, top + size, size, tuple(spans))


def column(texts, left, top=100, size=10.0, style=PLAIN, right=None, pitch=12.0):
    return [line(text, left, top + n * pitch, size, style, right) for n, text in enumerate(texts)]


def prose(name, count, left=50, top=100, right=400, size=10.0, pitch=12.0):
    """Return lines of running text that fill their column and end no sentence."""
    return column(
        [f"{name} line number {n} of a text which goes on and" for n in range(count)],
        left,
        top,
        size,
        right=right,
        pitch=pitch,
    )


def page(*lines, rules=(), fills=(), width=600, height=800):
    return PageContent(width, height, tuple(lines), tuple(rules), tuple(fills))


def grid(xs, ys):
    """Return the rules of a table with borders at these places."""
    level = [Rule(xs[0], y, xs[-1], y) for y in ys]
    return [*level, *(Rule(x, ys[0], x, ys[-1]) for x in xs)]
