"""Read the text of web pages, and of all pages in a sitemap."""

import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import httpx2

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.files.source import safe_filename
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, Progress, Unwanted, Wanted, check_characters, refused
from pipeline.reading.text.sections import Reading, Section
from pipeline.reading.text.text_files import read_by_child, read_file
from pipeline.reading.web import addresses, sitemap
from pipeline.reading.web.addresses import AllowPrivate, Resolve
from pipeline.reading.web.fetch import Fetched, fetch, parse_url

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_UNKNOWN = frozenset({"", "text/plain", "application/octet-stream", "binary/octet-stream"})
_SUFFIXES = {
    "application/pdf": ".pdf",
    "text/csv": ".csv",
    "application/json": ".json",
    "application/xml": ".xml",
    "text/xml": ".xml",
    "text/markdown": ".md",
}
_MAX_WARNINGS = 50
_RETRY_S, _MOST_WAIT_S = 2.0, 60.0
"""The wait before a page's second attempt, and the longest wait that a server may ask for."""


def read_url(
    url: str,
    limits: Limits,
    wanted: Wanted,
    progress: Progress = lambda _: None,
    *,
    allow_private: AllowPrivate = False,
    resolve: Resolve = addresses.resolve,
) -> Reading:
    """Fetch a web page and return its main text, or the text of a file of any kind that `read_file` reads.

    Raises `Unwanted`, or `UnitError`: permanent if the address is refused or its content cannot be read or has no text,
    transient if the server fails or does not answer.
    """
    return _page(url, limits, wanted, progress, allow_private, resolve)[0]


def _page(
    url: str, limits: Limits, wanted: Wanted, progress: Progress, allow_private: AllowPrivate, resolve: Resolve
) -> tuple[Reading, int]:
    """Return (text, number of bytes fetched)."""
    with tempfile.TemporaryDirectory(prefix="penstock-page-") as folder:
        to = Path(folder) / "page"
        answer = fetch(url, limits.fetch, wanted, to=to, allow_private=allow_private, resolve=resolve)
        if not answer.size_bytes:
            raise refused(f"{_shown(answer.url)} is empty.", "empty")
        progress(0.5)
        reading = _read(answer, to, limits, wanted, lambda share: progress(0.5 + share / 2))
        return reading, answer.size_bytes


def _read(answer: Fetched, path: Path, limits: Limits, wanted: Wanted, progress: Progress) -> Reading:
    if answer.content_type in _HTML or (answer.content_type in _UNKNOWN and _looks_like_html(path)):
        reading = read_by_child("page", path, answer.url, limits, wanted, progress, answer.charset)
        if not any(section.text.strip() for section in reading.sections):
            raise refused(f"No text was found at {_shown(answer.url)}.", "no_text")
        progress(1.0)
        return reading
    reading = read_file(path, _filename(answer), limits, wanted, progress)
    return replace(reading, sections=[replace(section, source=answer.url) for section in reading.sections])


def _looks_like_html(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(1024).lstrip().lower()
    return head.startswith((b"<!doctype html", b"<html"))


def _filename(answer: Fetched) -> str:
    """Return the file's name in its address; without a suffix there, add that of its type."""
    last = PurePosixPath(unquote(httpx2.URL(answer.url).path)).name
    name = safe_filename(last or httpx2.URL(answer.url).host)
    return name if PurePosixPath(name).suffix else name + _SUFFIXES.get(answer.content_type, "")


def _shown(url: str) -> str:
    return url if len(url) <= 200 else f"{url[:200]}…"


@dataclass
class _Crawl:
    """The pages of a sitemap found so far, and the state of following it."""

    limits: Limits
    wanted: Wanted
    get: Callable[[str], tuple[Fetched, sitemap.Sitemap]]
    ends: float
    pages: dict[str, None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    bytes: int = 0
    cut: bool = False

    def warn(self, message: str) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(message)

    def check(self, due: float = 0.0) -> bool:
        """Whether the sitemap's limits of time and of fetched bytes leave room for another page, which waits until
        `due` (monotonic). Raises `Unwanted`."""
        while (wanted := self.wanted()) and (wait_s := due - time.monotonic()) > 0:
            time.sleep(min(wait_s, 0.5))
        if not wanted:
            raise Unwanted("The sitemap is no longer wanted.")
        return time.monotonic() < self.ends and self.bytes < self.limits.sitemap.max_total_bytes

    def list_pages(self, first: str) -> None:
        """Collect the pages, through indexes of sitemaps. Raises `UnitError` if the first file cannot be read; others
        become warnings."""
        most = self.limits.sitemap
        waiting = deque([(first, 0)])
        seen = {first}
        while waiting and self.check():
            address, depth = waiting.popleft()
            try:
                answer, listed = self.get(address)
                self.bytes += answer.size_bytes
            except UnitError as error:
                if address == first:
                    raise
                self.warn(f"A sitemap was left out: {error}")
                continue
            at = parse_url(answer.url)
            for text in listed.sitemaps:
                further = address_of(text, at)
                if further is None or str(further) in seen:
                    continue
                if depth + 1 > most.max_depth or len(seen) >= most.max_files:
                    self.cut = True
                    continue
                seen.add(str(further))
                waiting.append((str(further), depth + 1))
            self._add_pages(listed.pages, at)

    def _add_pages(self, texts: list[str], at: httpx2.URL) -> None:
        elsewhere = 0
        for text in texts:
            page = address_of(text, at)
            if page is None:
                elsewhere += 1
            elif str(page) not in self.pages:
                if len(self.pages) >= self.limits.sitemap.max_pages:
                    self.cut = True
                    break
                self.pages[str(page)] = None
        if elsewhere:
            self.warn(f"{elsewhere} addresses in {_shown(str(at))} are not of its site, and were left out.")


def _same_site(page: httpx2.URL, sitemap: httpx2.URL) -> bool:
    """Whether a page is on the sitemap's host, with or without `www.`, or on a subdomain of it."""
    host, site = page.host.lower().removeprefix("www."), sitemap.host.lower().removeprefix("www.")
    return host == site or host.endswith(f".{site}")


def address_of(text: str, sitemap: httpx2.URL) -> httpx2.URL | None:
    """Return an address from a sitemap as an absolute one; None if it is invalid or on another site."""
    try:
        address = parse_url(str(sitemap.join(text.strip())))
    except (UnitError, httpx2.InvalidURL, ValueError):
        return None
    return address if _same_site(address, sitemap) else None


def read_sitemap(
    url: str,
    limits: Limits,
    wanted: Wanted,
    progress: Progress = lambda _: None,
    *,
    allow_private: AllowPrivate = False,
    resolve: Resolve = addresses.resolve,
) -> Reading:
    """Fetch a sitemap and its pages; return the pages' texts, at least a section for each, with the page's address as
    `source`.

    Skips pages on other sites, and those beyond the limits. Pages that cannot be read become warnings. Raises
    `Unwanted`, or `UnitError`: with code `bad_sitemap` or `no_pages`, the error of fetching the first sitemap, or the
    last page's error if no page can be read.
    """
    most = limits.sitemap
    # The compressed size must keep to the limit, too; `parse` checks the unpacked size.
    sizes = replace(limits.fetch, max_bytes=min(limits.fetch.max_bytes, most.max_bytes))

    def get(address: str) -> tuple[Fetched, sitemap.Sitemap]:
        with tempfile.TemporaryDirectory(prefix="penstock-sitemap-") as folder:
            to = Path(folder) / "sitemap"
            answer = fetch(address, sizes, wanted, to=to, allow_private=allow_private, resolve=resolve)
            task = {"task": "sitemap", "path": str(to), "sitemap": asdict(most)}
            return answer, sitemap.Sitemap(**child.run(task, _shown(address), limits, wanted))

    crawl = _Crawl(limits, wanted, get, time.monotonic() + most.timeout_s)
    crawl.list_pages(str(parse_url(url)))
    if not crawl.pages:
        raise refused(f"{_shown(url)} names no pages of its site.", "no_pages")
    sections, read, failure = _pages(crawl, progress, allow_private, resolve)
    if failure and not sections:
        message = f"None of the {len(crawl.pages)} pages in {_shown(url)} could be read. {failure}"
        raise UnitError(message, kind=failure.kind, code=failure.code, retry_after_s=failure.retry_after_s)
    if crawl.cut or read < len(crawl.pages):
        crawl.warn(f"The sitemap has more pages than the limit: the first {read} were read.")
    return Reading(httpx2.URL(url).host, sections, crawl.warnings)


def _pages(
    crawl: _Crawl, progress: Progress, allow_private: AllowPrivate, resolve: Resolve
) -> tuple[list[Section], int, UnitError | None]:
    """Return (text of the pages, number of pages tried, last failure). A page whose server fails for a moment is tried
    once more after the others, when the server wants it. Each final failure becomes a warning."""
    texts: dict[str, list[Section]] = {}
    failure: UnitError | None = None
    read = characters = 0
    waiting = deque((page, 0.0, False) for page in crawl.pages)
    while waiting:
        page, due, is_last = waiting.popleft()
        if not crawl.check(due):
            break
        try:
            reading, size = _page(page, crawl.limits, crawl.wanted, lambda _: None, allow_private, resolve)
            crawl.bytes += size
            title = f"# {reading.title}\n\n" if reading.title and not reading.sections[0].text.startswith("# ") else ""
            texts[page] = [replace(reading.sections[0], text=title + reading.sections[0].text), *reading.sections[1:]]
            characters += len(reading.text)
        except UnitError as error:
            failure = error
            wait_s = _RETRY_S if error.retry_after_s is None else error.retry_after_s
            if error.kind is ErrorKind.TRANSIENT and not is_last and wait_s <= _MOST_WAIT_S:
                waiting.append((page, time.monotonic() + wait_s, True))
                continue
            crawl.warn(f"{_shown(page)}: {error}")
        check_characters(characters, "The sitemap", crawl.limits)
        read += 1
        progress(read / len(crawl.pages))
    return [section for page in crawl.pages for section in texts.get(page, ())], read, failure
