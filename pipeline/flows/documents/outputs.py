"""A document's result in each format, whole or page by page, and its tables."""

import base64
import json
import re
from collections.abc import Callable, Iterator
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
_MAKE: dict[Format, Callable[[Json], str]] = {
    Format.HTML: markup.html,
    Format.TXT: markup.text,
    Format.DOCLING: lambda document: json.dumps(document, indent=2, ensure_ascii=False) + "\n",
}


def content(context: Context, document_id: str, form: Format, *, markers: bool = True) -> bytes:
    """Return the document's result in a format other than PDF. HTML embeds the pictures that were saved, up to 20 MB.

    `markers`: keep the comment with its number before each page of Markdown, and the rule between pages. Raises
    `UserError` without a result.
    """
    document = queries.document(context, document_id)
    path = document.result_path
    if form is Format.MD:
        if markers:
            return path.read_bytes()
        texts = [text for _, text in queries.page_texts(context, document_id) if text.strip()]
        return ("\n\n".join(texts) + "\n").encode()
    if form is Format.JSON:
        return _json(queries.layout_json(context, document_id))
    picture = embedded_picture(context, document_id) if form is Format.HTML else lambda _: None
    return _MAKE[form](queries.docling_document(context, document_id, picture)).encode()


def by_page(context: Context, document_id: str, form: Format) -> Iterator[tuple[int, bytes]]:
    """Return an iterator over the number of each page in the submitted file, and its result. A table that spans pages
    stays on its pages. Raises `UserError` without a result, and for the PDF, which is not split."""
    document = queries.document(context, document_id)
    if form is Format.PDF:
        raise UserError("the searchable PDF is not split into pages", code="usage")
    return _by_page(context, document, form) if document.result_path else iter(())


def _by_page(context: Context, document: DocumentView, form: Format) -> Iterator[tuple[int, bytes]]:
    picture, known = embedded_picture(context, document.id), queries.layouts(context, document.id)
    for view in queries.pages(context, document.id):
        page = plain(view)
        if form is Format.MD:
            data = f"{result.page_text(page)}\n".encode()
        else:
            layout = result.layout_json(plain(document), [page], known)
            if form is Format.JSON:
                data = _json(layout)
            else:
                data = _MAKE[form](queries.as_docling(document, layout, picture)).encode()
        yield view.page_source, data


def tables_as_csv(context: Context, document_id: str) -> list[tuple[int, int, bytes]]:
    """Return each table: the number of its page in the submitted file, its place there, from 1, and itself as CSV. A
    table that spans pages is one on each. Raises `UserError` without a result."""
    from pipeline.reading.export import tables  # noqa: PLC0415  # most callers need no CSV

    document = queries.document(context, document_id)
    assert document.result_path
    known, found = queries.layouts(context, document_id), list[tuple[int, int, bytes]]()
    for view in queries.pages(context, document_id):
        (page,) = result.layout_json(plain(document), [plain(view)], known)["pages"]
        found += [(view.page_source, number, text.encode()) for number, text in enumerate(tables.as_csv(page), 1)]
    return found


def _json(facts: Json) -> bytes:
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()


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
