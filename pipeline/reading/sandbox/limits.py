"""Limits for reading a file or a web page, and the task of a child process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.engine.errors import ErrorKind, PenstockError, UnitError

Wanted = Callable[[], bool]
"""Whether the caller still wants the result. Called twice a second; False stops the work."""

Progress = Callable[[float], None]
"""Receives the share (0 to 1) that has been read; it decreases only if another process had to start over."""


class Unwanted(PenstockError):
    """`wanted` returned False: the work has stopped without a result."""


LayoutChoice = Literal["auto", "geometry", "model"]
"""Whether the layout model analyses a page: see `pages.Options`."""

MODELS_SIDE_PX = 1568
"""The longer side of a frame for models, in pixels, at most."""
NO_READER = frozenset({"no_reader", "reader_killed"})
"""Error codes that say nothing about the file: no process could read it. Retrying helps."""
TOO_MUCH = frozenset({"too_slow", "too_large", "unreadable"})
"""Error codes of a file that is too much for the process that reads it."""

MAX_PIXELS = 6_750_000
"""The size to which larger pictures of pages are scaled down before text recognition."""
MAX_PAGE_CHARS = 1_000_000
"""Characters of one page of a result. Parsing its text takes many times their memory, here and in the servers."""


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one request. `timeout_s` covers all of it, from the name's lookup to the last byte."""

    max_bytes: int = 50_000_000
    timeout_s: float = 60.0
    connect_s: float = 10.0
    max_redirects: int = 5


@dataclass(frozen=True)
class SitemapLimits:
    """Limits of following a sitemap. `max_bytes`: one sitemap, unpacked; `max_depth`: indexes inside indexes."""

    max_pages: int = 500
    max_files: int = 50
    max_depth: int = 3
    max_bytes: int = 20_000_000
    max_total_bytes: int = 500_000_000
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class Limits:
    """Limits of reading. A larger source is refused with code `too_large`, a slower one with `too_slow`.

    `memory_mb` bounds the process that reads one file; `timeout_s` one page, or the whole of a file without pages;
    `total_s` all pages; `max_chars` the resulting text; `max_markup_bytes` HTML and XML, whose reading takes thirty
    times their size; `max_written_bytes` each file that the process writes.
    """

    max_bytes: int = 200_000_000
    max_markup_bytes: int = 20_000_000
    max_chars: int = 20_000_000
    max_pages: int = 5_000
    max_unpacked_bytes: int = 500_000_000
    max_ratio: float = 200.0
    max_entries: int = 20_000
    timeout_s: float = 300.0
    total_s: float = 7200.0
    memory_mb: int = 2_500
    max_written_bytes: int = 64 * 2**20
    ocr_dpi: int = 200
    ocr_pictures: bool = False
    ocr_threads: int = 1
    page_s: float = 60.0
    layout: LayoutChoice = "auto"
    fetch: FetchLimits = field(default_factory=FetchLimits)
    sitemap: SitemapLimits = field(default_factory=SitemapLimits)

    @property
    def processor_s(self) -> float:
        """The processor time of one step."""
        return self.timeout_s * max(1, self.ocr_threads)

    @property
    def most_processor_s(self) -> float:
        """The processor time of a process that reads one document, in all its tasks."""
        return max(self.total_s, 10 * self.timeout_s) * max(1, self.ocr_threads)


def page_limits(timeout_s: float, memory_mb: int, threads: int = 1) -> Limits:
    """Return the limits of a child for one page: `timeout_s` in all, `memory_mb`, and `threads` for recognition."""
    return Limits(
        timeout_s=timeout_s, total_s=timeout_s, memory_mb=memory_mb, ocr_threads=threads, max_chars=2 * MAX_PAGE_CHARS
    )


@dataclass(frozen=True)
class Task:
    """A task of a child process: its facts, which depend on its kind, and its limits."""

    facts: Mapping[str, Any]
    limits: Limits
    progress: Progress = lambda _: None

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    @property
    def path(self) -> Path:
        """The file to read."""
        return Path(self.facts["path"])


def refused(message: str, code: str) -> UnitError:
    """Return, without raising it, a permanent `UnitError`, which retrying does not solve."""
    return UnitError(message, kind=ErrorKind.PERMANENT, code=code)


def check_characters(count: int, name: str, limits: Limits) -> None:
    """Raise `UnitError` with code `too_large` if a text has more characters than the limit."""
    if count > limits.max_chars:
        message = f"{name} has more than {limits.max_chars:,} characters of text, the limit; split it."
        raise refused(message, "too_large")
