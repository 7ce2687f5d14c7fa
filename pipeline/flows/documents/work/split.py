"""The split stage: writes page rows, and renders pictures if needed. Rules: docs/sources/documents.md#splitting."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import structlog
from sqlalchemy import delete, insert

from pipeline.engine.claims import Owner
from pipeline.engine.errors import UnitError
from pipeline.engine.transaction import Tx
from pipeline.flows.documents import files
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus, progress
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import text_index
from pipeline.flows.documents.work.conversion import pages_of
from pipeline.flows.documents.work.document import ClaimLost
from pipeline.providers import registry
from pipeline.providers.protocols import PageConverter, ServiceConverter
from pipeline.reading.files.filetype import TEXT_TYPES
from pipeline.reading.files.source import parse_page_range
from pipeline.reading.files.user_file import write_text
from pipeline.reading.pdf import inspection
from pipeline.reading.sandbox.limits import TOO_MUCH, refused
from pipeline.reading.text import units
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
RENEW_EVERY_S = 5.0
"""Seconds between two renewals of the claim; each also notices a cancel or a pause."""


def split_document(context: Context, document_id: str, owner: Owner) -> bool:
    """Split the document if it waits for that, and return whether it did. Failures go to the row."""
    document = stage.claim(context, stage.SPLIT, document_id, owner)
    if document is None:
        return False
    try:
        images = _page_images(context, document)
        text_index.forget_ahead(context, document_id)
        context.db.run(lambda tx: insert_pages(tx, document, images))
    except ClaimLost:
        log.info("document.split_discarded", document=document_id, worker=owner.worker_id)
        return False
    except Exception as error:  # noqa: BLE001  # any failure must reach the row
        stage.fail(context, stage.SPLIT, document, error)
        return False
    log.info("document.split", document=document_id, pages=len(images), worker=owner.worker_id)
    return True


class _Watch:
    """Watches a split while child processes read the file: renews the claim, and ends a split that takes too long."""

    def __init__(self, context: Context, document: Any) -> None:
        self._context = context
        self._document = document
        self._renew_at = time.monotonic() + RENEW_EVERY_S
        self._allowed_s = context.settings.documents.split_timeout_s
        self._ends = time.monotonic() + self._allowed_s

    @property
    def is_over(self) -> bool:
        """Whether the split has used up its time."""
        return time.monotonic() > self._ends

    def __call__(self) -> bool:
        """Return True, and renew the claim every `RENEW_EVERY_S`.

        Raises `ClaimLost`, or `UnitError` with code `too_slow`.
        """
        now = time.monotonic()
        if self.is_over:
            raise refused(f"Splitting takes more than {self._allowed_s:g} s; convert it in parts.", "too_slow")
        if now > self._renew_at:
            stage.renew(self._context, stage.SPLIT, self._document)
            self._renew_at = now + RENEW_EVERY_S
        return True


def _page_images(context: Context, document: Any) -> list[tuple[int, Path | None]]:
    """Survey the document, and return, for each page to convert, (its number in the file, the path of its picture).
    None: the converter needs no picture, or the page could not be rendered."""
    settings = context.settings
    source = files.source_path(settings, document.id, document.type)
    watch = _Watch(context, document)
    if document.type in TEXT_TYPES:
        return [(number, None) for number in _texts(context, document, watch)]
    info = inspection.inspect(source, document.filename, settings.documents, watch)
    numbers = parse_page_range(document.page_range, info.pages)
    converter = registry.page_converter(settings, document.provider, document.model)
    _survey(context, document, converter, numbers, watch)
    watch()
    if not converter.needs_images:
        return [(number, None) for number in numbers]
    rendition = cast("ServiceConverter", converter).rendition
    folder = files.temp_folder(settings, document.id)
    folder.mkdir(parents=True, exist_ok=True)
    images: list[tuple[int, Path | None]] = []
    with pages_of(settings, source) as pages:
        for number in numbers:
            watch()
            try:
                image = pages.render(number, folder, rendition, settings.documents.max_pixels, watch)
            except UnitError as error:
                if error.code == "io" or watch.is_over:  # other pages would fail as well
                    raise
                image = None  # its conversion renders it again, and fails alone if that fails
            images.append((number, image))
    return images


def _texts(context: Context, document: Any, watch: _Watch) -> list[int]:
    """Return the numbers of the pages to convert of a file that holds its text; read it unless its submission stored
    its texts."""
    path = files.survey_path(context.settings, document.id)
    pages = units.pages_in(path.read_text(encoding="utf-8")) if path.exists() else []
    if not pages:
        survey = units.read(files.source_path(context.settings, document.id, document.type), watch)
        write_text(path, survey)
        pages = units.pages_in(survey)
    return parse_page_range(document.page_range, len(pages))


def _survey(context: Context, document: Any, converter: PageConverter, numbers: Sequence[int], watch: _Watch) -> None:
    """Store the document's profile that the conversion of its pages needs; remove an older one if it has none."""
    path, survey = files.survey_path(context.settings, document.id), ""
    source = files.source_path(context.settings, document.id, document.type)
    try:
        survey = converter.survey(source, numbers, watch)
    except UnitError as error:
        # One page exceeds a limit: let its conversion fail alone.
        if error.code not in TOO_MUCH or watch.is_over:
            raise
        log.warning("document.not_surveyed", document=document.id, error=str(error))
    if survey:
        write_text(path, survey)
    else:
        path.unlink(missing_ok=True)


def insert_pages(tx: Tx, document: Any, images: list[tuple[int, Path | None]]) -> None:
    """End the stage: replace the document's page rows, and make it PROCESSING. Raises `ClaimLost`."""
    stage.settle(
        tx,
        stage.SPLIT,
        document,
        pages=len(images),
        completed_count=0,
        failed_count=0,
        progress=progress(DocumentStatus.PROCESSING, len(images), 0, 0),
    )
    text_index.forget(tx, document.id)
    tx.execute(delete(PAGES).where(PAGES.c.document_id == document.id))
    rows = [
        {
            "document_id": document.id,
            "page": place,
            "page_source": number,
            "status": PageStatus.PENDING,
            "provider": document.provider,
            "model": document.model,
            "use_cache": document.use_cache,
            "image_path": str(image) if image else None,
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        for place, (number, image) in enumerate(images, 1)
    ]
    tx.connection().execute(insert(PAGES), rows)
