"""The web links of a PDF page, and the words on them."""

import ctypes
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pypdfium2.raw as pdfium_c

from pipeline.reading.pdf.pdfium import Box, Page
from pipeline.reading.pdf.words import Word

_MAX_LINKS = 2_000
_MAX_URL = 2_000
_BUCKET = 20.0
_SCHEMES = frozenset({"http", "https", "mailto", "ftp", "tel"})


class Links:
    """The links of one open page, indexed by height."""

    def __init__(self, page: Page) -> None:
        self._by_height: defaultdict[int, list[tuple[Box, str]]] = defaultdict(list)
        for box, url in _links(page):
            first, last = _bucket(box[1]), _bucket(box[3])
            for bucket in range(first, min(last, first + 100) + 1):
                self._by_height[bucket].append((box, url))

    def are_near(self, y: float) -> bool:
        """Whether a link may lie at this height."""
        return bool(self._by_height) and _bucket(y) in self._by_height

    def on(self, words: list[Word]) -> list[Word]:
        """Return the words; a word whose middle lies on a link has the link's address in its style."""
        if not self._by_height:
            return words
        linked = []
        for word in words:
            x, y = (word.left + word.right) / 2, (word.top + word.bottom) / 2
            near = self._by_height.get(_bucket(y), ())
            url = next((url for box, url in near if box[0] <= x <= box[2] and box[1] <= y <= box[3]), "")
            linked.append(word._replace(style=word.style._replace(link=url)) if url else word)
        return linked


def _bucket(y: float) -> int:
    return int(max(-1e6, min(y, 1e6)) // _BUCKET)


def _links(page: Page) -> Iterator[tuple[Box, str]]:
    position, link = ctypes.c_int(0), pdfium_c.FPDF_LINK()
    rect = pdfium_c.FS_RECTF()
    for _ in range(_MAX_LINKS):
        if not pdfium_c.FPDFLink_Enumerate(page.raw, position, link):
            return
        action = pdfium_c.FPDFLink_GetAction(link)
        if not action or pdfium_c.FPDFAction_GetType(action) != pdfium_c.PDFACTION_URI:
            continue
        url = _url(page.raw.pdf, action)
        if url and pdfium_c.FPDFLink_GetAnnotRect(link, rect):
            yield page.displayed(rect.left, rect.bottom, rect.right, rect.top), url


def _url(document: Any, action: Any) -> str:
    """Return the address if it leads to the web, a mailbox, an FTP server or a telephone; otherwise empty."""
    length = pdfium_c.FPDFAction_GetURIPath(document, action, None, 0)
    if not 1 < length <= _MAX_URL:
        return ""
    buffer = ctypes.create_string_buffer(length)
    pdfium_c.FPDFAction_GetURIPath(document, action, buffer, length)
    url = "".join(buffer.value.decode("utf-8", "replace").split())
    try:
        return url if urlsplit(url).scheme.lower() in _SCHEMES else ""
    except ValueError:
        return ""
