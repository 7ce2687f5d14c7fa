"""Read the addresses in a sitemap: an index leads to more sitemaps, and either may be compressed.

Parsing 20 MB of hostile XML takes a third of a gigabyte and half a minute, so children do it: see `web.tasks`.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import iterparse

from pipeline.reading.sandbox.limits import SitemapLimits, refused
from pipeline.reading.web.addresses import MAX_URL

_GZIP = b"\x1f\x8b"
_MAX_ELEMENTS = 1_000_000
_MAX_DEPTH = 20


@dataclass(frozen=True)
class Sitemap:
    """The addresses in one file, unchecked: web pages or, in an index, further sitemaps."""

    pages: list[str] = field(default_factory=list)
    sitemaps: list[str] = field(default_factory=list)


def parse(body: bytes, name: str, limits: SitemapLimits) -> Sitemap:
    """Return the addresses in a sitemap, unchecked; beyond a limit, one more than it allows, so that the caller
    notices. `name`: the sitemap's name in errors.

    Raises `UnitError` (permanent) with code `bad_sitemap` or `too_large`.
    """
    result = Sitemap()
    for kind, address in _locations(_unpacked(body, name, limits), name):
        listed = result.sitemaps if kind == "sitemap" else result.pages
        most = limits.max_files if kind == "sitemap" else limits.max_pages
        if len(address) <= MAX_URL and len(listed) <= most:  # one above the limit, so that the caller notices
            listed.append(address)
    return result


def _unpacked(body: bytes, name: str, limits: SitemapLimits) -> bytes:
    if body.startswith(_GZIP):
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            body = unpacker.decompress(body, limits.max_bytes + 1)
        except zlib.error as error:
            raise refused(f"{name} is not a sitemap: it is damaged.", "bad_sitemap") from error
    if len(body) > limits.max_bytes:
        message = f"{name} unpacks to more than the {limits.max_bytes / 1e6:,.0f} MB that a sitemap may have."
        raise refused(message, "too_large")
    return body


def _locations(body: bytes, name: str) -> Iterator[tuple[str, str]]:
    """Yield ("url" or "sitemap", address) in order. Document types are forbidden, so entities never load."""
    root, parents, kind = "", 0, ""
    try:
        for count, (event, element) in enumerate(iterparse(BytesIO(body), events=("start", "end"), forbid_dtd=True)):
            tag = str(element.tag).rpartition("}")[2]
            root = root or tag
            if root not in {"urlset", "sitemapindex"} or count > 2 * _MAX_ELEMENTS or parents > _MAX_DEPTH:
                break
            if event == "start":
                parents += 1
                kind = tag if parents == 2 else kind
                continue
            if parents == 3 and tag == "loc" and kind in {"url", "sitemap"} and element.text:
                yield kind, element.text.strip()
            parents -= 1
            element.clear()
    except (ParseError, DefusedXmlException, LookupError, ValueError) as error:
        raise refused(f"{name} is not a sitemap that can be read: {type(error).__name__}.", "bad_sitemap") from error
    if root not in {"urlset", "sitemapindex"}:
        raise refused(f"{name} is not a sitemap: it holds {root[:40] or 'nothing'}.", "bad_sitemap")
