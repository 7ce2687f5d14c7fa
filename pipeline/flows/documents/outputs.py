"""A document's result in each format, whole or page by page, and its tables."""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.engine.errors import UserError
from pipeline.engine.views import plain
from pipeline.flows.documents import files, queries
from pipeline.flows.documents.rules import result
from pipeline.flows.documents.views import DocumentView
from pipeline.reading.export import docling, markup
from pipeline.reading.export.formats import Format
from pipeline.storage.context import Context

_MOST_EMBEDDED = 20_000_000
_LINK = re.compile(r"pictures/(page-[0-9]{4,7}-[0-9]{1,3}\.png)")
Json = dict[str, Any]


def content(context: Context, document_id: str, form: Format, *, markers: bool = True) -> Iterator[str]:
    """Return an iterator over the pieces of the document's result in a format other than PDF. HTML embeds the pictures
    that were saved, up to 20 MB. Memory holds a few pages, except of Markdown.

    `markers`: keep the comment with its number before each page of Markdown, and the rule between pages. Raises
    `UserError` without a result.
    """
    document = queries.document(context, document_id)
    path = document.result_path
    if form is Format.MD:
        if markers:
            return iter([path.read_text(encoding="utf-8")])
        texts = [text for _, text in queries.page_texts(context, document_id) if text.strip()]
        return iter(["\n\n".join(texts), "\n"])
    picture = embedded_picture(context, document_id) if form is Format.HTML else lambda _: None
    return _pieces(context, document, queries.layout_pages(context, document_id), form, picture)


def _pieces(
    context: Context, document: DocumentView, pages: Iterable[Json], form: Format, picture: docling.PictureData
) -> Iterator[str]:
    if form is Format.JSON:
        return _layout(document, pages)
    parts, facts = docling.Parts(pages, picture), queries.docling_facts(context, document.id)
    match form:
        case Format.HTML:
            return markup.html(docling.name_of(document.filename), parts)
        case Format.TXT:
            return markup.text(parts)
    return docling.pieces(parts, **facts)


def layout(context: Context, document_id: str) -> Iterator[str]:
    """Return an iterator over the pieces of the JSON of `queries.layout_json`, also before the document has a result.
    Raises `UnknownDocument`."""
    return _layout(queries.document(context, document_id), queries.layout_pages(context, document_id))


def _layout(document: DocumentView, pages: Iterable[Json]) -> Iterator[str]:
    yield json.dumps(result.layout_head(plain(document)), ensure_ascii=False)[:-1] + ', "pages": ['
    for number, page in enumerate(pages):
        yield (",\n" if number else "\n") + json.dumps(page, ensure_ascii=False)
    yield "\n]}\n"


def by_page(context: Context, document_id: str, form: Format) -> Iterator[tuple[int, bytes]]:
    """Return an iterator over the number of each page in the submitted file, and its result. A table that spans pages
    stays on its pages. Raises `UserError` without a result, and for the PDF, which is not split."""
    document = queries.document(context, document_id)
    if form is Format.PDF:
        raise UserError("the searchable PDF is not split into pages", code="usage")
    return _by_page(context, document, form) if document.result_path else iter(())


def _by_page(context: Context, document: DocumentView, form: Format) -> Iterator[tuple[int, bytes]]:
    if form is Format.MD:
        for number, text in queries.page_texts(context, document.id, joined=False):
            yield number, f"{text}\n".encode()
        return
    picture = embedded_picture(context, document.id)
    for page in queries.layout_pages(context, document.id):
        yield page["page_source"], "".join(_pieces(context, document, [page], form, picture)).encode()


def tables_as_csv(context: Context, document_id: str) -> list[tuple[int, int, bytes]]:
    """Return each table: the number of its page in the submitted file, its place there, from 1, and itself as CSV. A
    table that spans pages is one on each. Raises `UserError` without a result."""
    from pipeline.reading.export import tables  # noqa: PLC0415  # most callers need no CSV

    document = queries.document(context, document_id)
    assert document.result_path
    return [
        (page["page_source"], number, text.encode())
        for page in queries.layout_pages(context, document_id)
        for number, text in enumerate(tables.as_csv(page), 1)
    ]


def embedded_picture(context: Context, document_id: str) -> docling.PictureData:
    """Return a function that turns a link to a picture of the document into a `data:` URI; it returns None for other
    links, missing files, and pictures beyond `_MOST_EMBEDDED` bytes in all."""
    folder = files.pictures_folder(context.settings, document_id)
    known: dict[str, str] = {}

    def uri(link: str) -> str | None:
        if (match := _LINK.fullmatch(link)) is None:
            return None
        if link not in known:
            path = folder / match[1]
            try:
                fits = path.stat().st_size + sum(map(len, known.values())) <= _MOST_EMBEDDED
                known[link] = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" if fits else ""
            except OSError:
                known[link] = ""
        return known[link] or None

    return uri
