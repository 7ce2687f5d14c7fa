"""How much is read of a file or a web page, and what a child process is asked to read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.engine.errors import ErrorKind, PenstockError, UnitError

Wanted = Callable[[], bool]
"""Whether the result is still wanted. Asked about twice a second; once it says no, what is under way stops."""

Progress = Callable[[float], None]
"""Called with the share (0 to 1) that has been read; less than before only if another process had to begin anew."""


class Unwanted(PenstockError):
    """`wanted` said no: nothing was read, and whatever was under way has stopped."""


LayoutChoice = Literal["auto", "geometry", "model"]
"""Whether the layout model sees a page: see `pages.Options`."""

MODELS_SIDE_PX = 1568
"""The longer side of a frame that models are shown, in pixels, at most."""
NOBODY_READ = frozenset({"no_reader", "reader_killed"})
"""Codes of errors that say nothing of the file: no process could read it, which passes."""
TOO_MUCH = frozenset({"too_slow", "too_large", "unreadable"})
"""Codes of errors that say that a file was too much for the process that read it."""

MAX_PIXELS = 6_750_000
"""Larger pictures of pages are scaled down to this many pixels before their text is recognised."""
_MAX_PAGE_CHARS = 2_000_000


@dataclass(frozen=True)
class FetchLimits:
    """What one request may take. `timeout_s` is for all of it, from the name's lookup to the last byte."""

    max_bytes: int = 50_000_000
    timeout_s: float = 60.0
    connect_s: float = 10.0
    max_redirects: int = 5


@dataclass(frozen=True)
class SitemapLimits:
    """How far a sitemap is followed. `max_bytes`: of one sitemap, unpacked; `max_depth`: of indexes in indexes."""

    max_pages: int = 500
    max_files: int = 50
    max_depth: int = 3
    max_bytes: int = 20_000_000
    max_total_bytes: int = 500_000_000
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class Limits:
    """How much is read. What has more is refused with code `too_large`, what takes longer with `too_slow`.

    `memory_mb` holds for the process that reads one file; `timeout_s` for one page of it, or for all of what has none;
    `total_s` for all pages; `max_chars` for the text that comes out;
    `max_markup_bytes` for HTML and XML, which take thirty times their size to read.
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
    ocr_dpi: int = 200
    ocr_pictures: bool = False
    ocr_threads: int = 2
    page_s: float = 60.0
    layout: LayoutChoice = "auto"
    fetch: FetchLimits = field(default_factory=FetchLimits)
    sitemap: SitemapLimits = field(default_factory=SitemapLimits)


def page_limits(timeout_s: float, memory_mb: int, threads: int = 1) -> Limits:
    """What one page of a document may take, in the process that reads it."""
    return Limits(
        timeout_s=timeout_s, total_s=timeout_s, memory_mb=memory_mb, ocr_threads=threads, max_chars=_MAX_PAGE_CHARS
    )


@dataclass(frozen=True)
class Task:
    """What a child process is asked to do: facts of its own kind, and how much it may take."""

    facts: Mapping[str, Any]
    limits: Limits
    progress: Progress = lambda _: None

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    @property
    def path(self) -> Path:
        """The file that it is about."""
        return Path(self.facts["path"])


def refused(message: str, code: str) -> UnitError:
    """An error that trying again does not help."""
    return UnitError(message, kind=ErrorKind.PERMANENT, code=code)


def check_characters(count: int, name: str, limits: Limits) -> None:
    """Raises `UnitError` with code `too_large` if this much text is more than is accepted."""
    if count > limits.max_chars:
        message = f"{name} has more than {limits.max_chars:,} characters of text, which is what is accepted; split it."
        raise refused(message, "too_large")
