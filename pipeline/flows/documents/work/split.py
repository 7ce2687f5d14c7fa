"""The split stage: make a row for each page, and its picture where the converter needs one. Source 001, 4.2."""

from itertools import count
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import delete, insert
from sqlalchemy.orm import Session

from pipeline.engine.claims import Claim, Owner
from pipeline.flows.documents import files
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentEvent, DocumentStatus, PageStatus, progress
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import text_index
from pipeline.flows.documents.work.document import ClaimLost
from pipeline.providers import registry
from pipeline.reading.source import inspect, parse_page_range, render_pages
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
SPLIT = stage.stage(
    "split", DocumentEvent.CLAIM_SPLIT, DocumentEvent.SPLIT_DONE, "the worker was lost while it split this document",
    progress=progress(DocumentStatus.PENDING, 0, 0, 0),
)  # fmt: skip
"""PENDING → SPLITTING → PROCESSING."""
RENEW_EVERY = 20
"""Pages between two renewals of the claim; each renewal also notices a cancel or a pause."""


def split_document(context: Context, document_id: str, owner: Owner) -> bool:
    """Split the document if it waits for that. Returns whether it did; a failure ends up on the row."""
    claimed = stage.claim(context, SPLIT, document_id, owner)
    if claimed is None:
        return False
    document, claim = claimed
    try:
        images = _page_images(context, document, claim)
        context.db.run(lambda session: insert_pages(session, context, document, claim, images))
    except ClaimLost:
        log.info("document.split_discarded", document=document_id, worker=owner.worker_id)
        return False
    except Exception as error:  # noqa: BLE001  # whatever it is, it must end up on the row
        stage.fail(context, SPLIT, document, claim, error)
        return False
    log.info("document.split", document=document_id, pages=len(images), worker=owner.worker_id)
    return True


def _page_images(context: Context, document: Any, claim: Claim) -> list[tuple[int, Path | None]]:
    """For each page to convert: its page of the source, and its picture if one is needed. Surveys the document, too."""
    settings = context.settings
    source = files.source_path(settings, document.id, document.type)
    info = inspect(source, settings.documents)
    numbers = parse_page_range(document.page_range, info.pages)
    converter = registry.page_converter(settings, document.provider, document.model)
    surveyed = count(1)

    def tick() -> None:
        if next(surveyed) % RENEW_EVERY == 0:
            stage.renew(context, SPLIT, document.id, claim)

    # A worker that died here before may have died of one page. That page should fail alone, so survey nothing.
    survey = converter.survey(source, numbers, tick) if document.attempts == 1 else ""
    if survey:
        files.write_text(files.survey_path(settings, document.id), survey)
    else:
        files.survey_path(settings, document.id).unlink(missing_ok=True)
    if not converter.needs_images:
        return [(number, None) for number in numbers]
    folder = files.temp_folder(settings, document.id)
    folder.mkdir(parents=True, exist_ok=True)
    dpi = settings.providers[document.provider].image_dpi
    images: list[tuple[int, Path | None]] = []
    for number, image in render_pages(source, info.type, numbers, folder, dpi, settings.documents.max_pixels):
        images.append((number, image))
        if len(images) % RENEW_EVERY == 0:
            stage.renew(context, SPLIT, document.id, claim)
    return images


def insert_pages(
    session: Session, context: Context, document: Any, claim: Claim, images: list[tuple[int, Path | None]]
) -> None:
    """End the stage: replace the document's page rows, and make it PROCESSING. Raises `ClaimLost`."""
    now = context.db.now()
    stage.settle(
        session, context, SPLIT, document, claim, pages=len(images), completed_count=0, failed_count=0,
        progress=progress(DocumentStatus.PROCESSING, len(images), 0, 0),
    )  # fmt: skip
    text_index.forget(session, document.id)
    session.execute(delete(PAGES).where(PAGES.c.document_id == document.id))
    rows = [
        {
            "document_id": document.id, "page": place, "page_source": number, "status": PageStatus.PENDING,
            "provider": document.provider, "model": document.model, "use_cache": document.use_cache,
            "image_path": str(image) if image else None, "created_at": now, "updated_at": now,
        }
        for place, (number, image) in enumerate(images, 1)
    ]  # fmt: skip
    session.connection().execute(insert(PAGES), rows)
