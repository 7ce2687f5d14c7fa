"""What each provider made of the compared pages: text, time, cost, doubts and differences. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.flows.documents.rules.difference import Difference, difference

if TYPE_CHECKING:
    from pipeline.flows.documents.views import AttemptView, PageView


@dataclass(frozen=True)
class PageFigures:
    """A page by one provider. Time, tokens and cost are those of all its calls, even if its text came from the cache
    now; `calls` is 0 if none is on record."""

    page: int
    """Its number in the file."""
    position: int
    """Its number in the document."""
    text: str
    error: str | None
    doubtful: bool
    calls: int
    seconds: float
    input_tokens: int
    output_tokens: int
    cost: float
    changed: float | None = None
    """The share of characters that differ from the first provider's text, 0 to 1; None: nothing to compare."""

    @property
    def words(self) -> int:
        """The number of words in the text."""
        return len(self.text.split())


@dataclass(frozen=True)
class Candidate:
    """A provider, with its model, and its pages; `error` if it converted none or not all."""

    name: str
    """As the user wrote it: `PROVIDER` or `PROVIDER:MODEL`."""
    model: str
    has_price: bool
    """Whether `cost` means anything: the provider is free, or its model has a price."""
    document_id: str | None = None
    status: str = "REFUSED"
    error: str | None = None
    pages: Sequence[PageFigures] = ()

    @property
    def converted(self) -> list[PageFigures]:
        """The pages with a text."""
        return [page for page in self.pages if not page.error]

    def estimate(self, pages: int) -> tuple[float | None, float | None]:
        """Return (seconds, cost) of that many pages, one after another, at the mean of the converted pages; None where
        nothing was measured, or without a price."""
        measured = [page for page in self.converted if page.calls]
        if not measured:
            return None, None
        scale = pages / len(measured)
        cost = sum(page.cost for page in measured) * scale if self.has_price else None
        return sum(page.seconds for page in measured) * scale, cost


def sample(pages: int, count: int, preferred: Collection[int] = ()) -> list[int]:
    """Return `count` of the pages 1 to `pages`, ascending and spread over the file: as many of `preferred` as fit."""
    first = _spread([page for page in range(1, pages + 1) if page in preferred], count)
    others = [page for page in range(1, pages + 1) if page not in preferred]
    return sorted(first + _spread(others, count - len(first)))


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    count = min(count, len(numbers))
    return [numbers[(2 * place + 1) * len(numbers) // (2 * count)] for place in range(count)]


def page_figures(page: "PageView", calls: Sequence["AttemptView"], error: str | None) -> PageFigures:
    """The figures of a page with these calls. `error`: why it has no text."""
    return PageFigures(
        page.page_source,
        page.page,
        "" if error else page.content,
        error,
        page.doubtful,
        len(calls),
        sum(call.latency_ms for call in calls) / 1000,
        sum(call.input_tokens for call in calls),
        sum(call.output_tokens for call in calls),
        sum(call.cost for call in calls),
    )


def differences(candidates: Sequence[Candidate]) -> Mapping[tuple[str, int], Difference]:
    """Return, by provider and page, how each text differs from that of the first provider; leaves out the first
    provider, and pages that one of the two lacks."""
    first = {page.page: page.text for page in candidates[0].converted}
    return {
        (candidate.name, page.page): difference(first[page.page], page.text)
        for candidate in candidates[1:]
        for page in candidate.converted
        if page.page in first
    }


def changed_share(found: Difference) -> float:
    """The share of both texts' characters that the other text lacks; white space does not count."""
    lengths = [("".join(piece.text.split()), piece.changed) for piece in (*found.old, *found.new)]
    total = sum(len(text) for text, _ in lengths)
    return sum(len(text) for text, changed in lengths if changed) / total if total else 0.0
