"""Web pages, and all the pages of a sitemap, as text."""

import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import httpx2

from pipeline.engine.errors import UnitError
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


def read_url(
    url: str,
    limits: Limits,
    wanted: Wanted,
    progress: Progress = lambda _: None,
    *,
    allow_private: AllowPrivate = False,
    resolve: Resolve = addresses.resolve,
) -> Reading:
    """The main text of a web page, or the text of a file of any kind that `read_file` reads.

    Raises `Unwanted`, or `UnitError` as `fetch` and `read_file` do.
    """
    return _page(url, limits, wanted, progress, allow_private, resolve)[0]


def _page(
    url: str, limits: Limits, wanted: Wanted, progress: Progress, allow_private: AllowPrivate, resolve: Resolve
) -> tuple[Reading, int]:
    """(what was read, how many bytes were fetched)."""
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
    """What the file is called in its address, with the suffix of its type if it has none."""
    last = PurePosixPath(unquote(httpx2.URL(answer.url).path)).name
    name = safe_filename(last or httpx2.URL(answer.url).host)
    return name if PurePosixPath(name).suffix else name + _SUFFIXES.get(answer.content_type, "")


def _shown(url: str) -> str:
    return url if len(url) <= 200 else f"{url[:200]}…"


@dataclass
class _Crawl:
    """A sitemap as far as it has been followed."""

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

    def check(self) -> bool:
        """Whether there is time and room for more. Raises `Unwanted`."""
        if not self.wanted():
            raise Unwanted("The sitemap is not wanted any more.")
        return time.monotonic() < self.ends and self.bytes < self.limits.sitemap.max_total_bytes

    def list_pages(self, first: str) -> None:
        """Find the pages, through indexes of sitemaps. Only the first file must be readable."""
        most = self.limits.sitemap
        waiting = deque([(first, 0)])
        seen = {first}
        while waiting and self.check():
            address, depth = waiting.popleft()
            try:
                answer, found = self.get(address)
                self.bytes += answer.size_bytes
            except UnitError as error:
                if address == first:
                    raise
                self.warn(f"A sitemap was left out: {error}")
                continue
            at = parse_url(answer.url)
            for text in found.sitemaps:
                further = address_of(text, at)
                if further is None or str(further) in seen:
                    continue
                if depth + 1 > most.max_depth or len(seen) >= most.max_files:
                    self.cut = True
                    continue
                seen.add(str(further))
                waiting.append((str(further), depth + 1))
            self._add_pages(found.pages, at)

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
    """Whether a page belongs to the site of the sitemap: its host, with or without `www.`, or one below that."""
    host, site = page.host.lower().removeprefix("www."), sitemap.host.lower().removeprefix("www.")
    return host == site or host.endswith(f".{site}")


def address_of(text: str, sitemap: httpx2.URL) -> httpx2.URL | None:
    """The address that is written in a sitemap, if it is one of its site."""
    try:
        found = parse_url(str(sitemap.join(text.strip())))
    except (UnitError, httpx2.InvalidURL, ValueError):
        return None
    return found if _same_site(found, sitemap) else None


def read_sitemap(
    url: str,
    limits: Limits,
    wanted: Wanted,
    progress: Progress = lambda _: None,
    *,
    allow_private: AllowPrivate = False,
    resolve: Resolve = addresses.resolve,
) -> Reading:
    """The text of the pages that a sitemap names, a section or more each, with their addresses as `source`.

    Pages on other sites are left out. Pages that cannot be read are warnings, unless that is all of them. Raises
    `Unwanted`, or `UnitError`: as `read_url`, and permanent with code `bad_sitemap` or `no_pages`.
    """
    most = limits.sitemap
    # Packed, it is smaller; unpacked, `parse` limits it.
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
        crawl.warn(f"The sitemap has more pages than are read at most: the first {read} were.")
    return Reading(httpx2.URL(url).host, sections, crawl.warnings)


def _pages(
    crawl: _Crawl, progress: Progress, allow_private: AllowPrivate, resolve: Resolve
) -> tuple[list[Section], int, UnitError | None]:
    """(the text of the pages, how many were tried, the last failure)."""
    sections: list[Section] = []
    failure: UnitError | None = None
    read = characters = 0
    for page in crawl.pages:
        if not crawl.check():
            break
        try:
            found, size = _page(page, crawl.limits, crawl.wanted, lambda _: None, allow_private, resolve)
            crawl.bytes += size
            title = f"# {found.title}\n\n" if found.title and not found.sections[0].text.startswith("# ") else ""
            sections += [replace(found.sections[0], text=title + found.sections[0].text), *found.sections[1:]]
            characters += len(found.text)
        except UnitError as error:
            failure = error
            crawl.warn(f"{_shown(page)}: {error}")
        check_characters(characters, "The sitemap", crawl.limits)
        read += 1
        progress(read / len(crawl.pages))
    return sections, read, failure
