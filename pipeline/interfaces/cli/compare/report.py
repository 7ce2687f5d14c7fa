"""The comparison on the terminal: each page's texts side by side, and a table for the whole file."""

from collections.abc import Mapping, Sequence

from rich.table import Table as Grid
from rich.text import Text

from pipeline.engine.nouns import count
from pipeline.engine.views import money
from pipeline.flows.documents.rules.difference import Difference, Piece
from pipeline.interfaces.cli.compare.figures import Candidate, PageFigures
from pipeline.interfaces.cli.output import Table, one_line, out
from pipeline.interfaces.cli.times import span

Found = Mapping[tuple[str, int], Difference]
_LEAST_COLUMN, _MOST_WIDTH = 30, 200
_GAP = 2
COLUMNS = ("provider", "model", "pages", "time a page", "tokens a page", "cost a page", "doubtful", "differs")
"""The columns of the table, before the two for the whole file."""


def show(candidates: Sequence[Candidate], found: Found, in_file: int) -> None:
    """Print the comparison. Texts stand side by side where the terminal has room, else below one another; differences
    from the first provider's text are yellow."""
    for number in sorted({page.page for candidate in candidates for page in candidate.pages}):
        out.print(f"[bold]Page {number}[/bold]")
        _print_page(number, candidates, found)
        out.print()
    table = Table(*(name if name in {"provider", "model"} else f"{name}>" for name in COLUMNS), *whole(in_file))
    for candidate in candidates:
        table.add(*map(one_line, row(candidate, in_file)))
    table.print()
    for candidate in candidates:
        if candidate.error:
            out.print(Text(f"{candidate.name}: {candidate.error}"), soft_wrap=True)


def whole(in_file: int) -> tuple[str, str]:
    """The names of the columns for the whole file."""
    pages = count(in_file, "page")
    return f"{pages}: cost", f"{pages}: time"


def row(candidate: Candidate, in_file: int) -> list[str]:
    """A candidate's cells in the table of totals. A dash: not measured, or no price known."""
    seconds, cost = candidate.estimate(in_file)
    each_s, each_cost = candidate.estimate(1)
    measured = [page for page in candidate.converted if page.calls]
    tokens = sum(page.input_tokens + page.output_tokens for page in measured) / len(measured) if measured else 0
    changed = [page.changed for page in candidate.converted if page.changed is not None]
    return [
        candidate.name,
        candidate.model,
        f"{len(candidate.converted)} of {len(candidate.pages)}" if candidate.pages else "–",
        "–" if each_s is None else f"{each_s:.1f} s",
        f"{tokens:,.0f}" if tokens else "–",
        "–" if each_cost is None else money(each_cost),
        str(sum(page.doubtful for page in candidate.converted)) if candidate.converted else "–",
        f"{sum(changed) / len(changed):.0%}" if changed else "–",
        "–" if cost is None else money(cost),
        "–" if seconds is None else span(seconds),
    ]


def facts(page: PageFigures, candidate: Candidate) -> str:
    """A page's figures in one line."""
    parts = [count(page.words, "word")]
    if page.calls:
        parts.append(f"{page.seconds:.1f} s")
        parts += [f"{page.input_tokens:,} + {page.output_tokens:,} tokens"] if page.output_tokens else []
        parts += [money(page.cost)] if candidate.has_price and page.cost else []
    parts += ["doubtful"] if page.doubtful else []
    parts += [f"{page.changed:.0%} differs"] if page.changed else ["no difference"] if page.changed == 0 else []
    return ", ".join(parts)


def pieces(candidate: Candidate, page: PageFigures, candidates: Sequence[Candidate], found: Found) -> Sequence[Piece]:
    """A page's text with its differences marked. The first provider's text has marks only beside a single other one."""
    if candidate is candidates[0] and len(candidates) == 2:
        difference = found.get((candidates[1].name, page.page))
        return difference.old if difference else [Piece(page.text, changed=False)]
    difference = found.get((candidate.name, page.page))
    return difference.new if difference else [Piece(page.text, changed=False)]


def _print_page(number: int, candidates: Sequence[Candidate], found: Found) -> None:
    width = min(out.width, _MOST_WIDTH)
    beside = [(candidate, page) for candidate in candidates for page in candidate.pages if page.page == number]
    is_wide = width // max(1, len(beside)) >= _LEAST_COLUMN
    rows = [beside] if is_wide else [[each] for each in beside]
    for shown in rows:
        grid = Grid.grid(padding=(0, _GAP, 0, 0), expand=True)
        for _ in shown:
            grid.add_column(ratio=1, overflow="fold")
        grid.add_row(*(Text(candidate.name, "bold cyan") for candidate, _ in shown))
        grid.add_row(
            *(Text(page.error or facts(page, candidate), "red" if page.error else "dim") for candidate, page in shown)
        )
        grid.add_row(*(_marked(pieces(candidate, page, candidates, found)) for candidate, page in shown))
        out.print(grid, width=width)


def _marked(parts: Sequence[Piece]) -> Text:
    text = Text()
    for piece in parts:
        text.append(piece.text, "yellow" if piece.changed else "")
    text.rstrip()
    return text
