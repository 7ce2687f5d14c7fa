"""The split stage: a document becomes page rows, with pictures where its converter needs them. Source 001, 4.2."""

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import delete, insert, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE, Claim, Owner, held_by
from pipeline.engine.errors import PenstockError
from pipeline.engine.relaunch import RELAUNCH_AFTER_S
from pipeline.flows.documents import files
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus, PageStatus, progress
from pipeline.flows.documents.work import stage
from pipeline.providers import registry
from pipeline.providers.protocols import PageConverter
from pipeline.reading.source import inspect, parse_page_range, render_pages
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
RENEW_EVERY = 20
"""Pages rendered between two renewals of the claim; each also notices a cancel or a pause."""


class ClaimLost(PenstockError):
    """The document was cancelled, paused or taken over meanwhile: what was done here is discarded."""


def split(context: Context, document_id: str, owner: Owner) -> bool:
    """Split the document if it waits for that; whether it did. Failures end on the row."""
    claimed = stage.claim_stage(context, document_id, DocumentEvent.CLAIM_SPLIT, owner)
    if claimed is None:
        return False
    document, claim = claimed
    try:
        images = _page_images(context, document, claim)
        context.db.run(lambda session: _commit(session, document, claim, images))
    except ClaimLost:
        log.info("document.split_discarded", document=document_id)
        return False
    except Exception as error:  # noqa: BLE001  # whatever it is, it must end on the row
        stage.fail_stage(context, document_id, claim, error)
        return False
    log.info("document.split", document=document_id, pages=len(images))
    return True


def _page_images(context: Context, document: Any, claim: Claim) -> list[tuple[int, Path | None]]:
    """(page of the source, its picture if one is needed) for each page to convert."""
    settings = context.settings
    source = files.source_path(settings, document.id, document.type)
    info = inspect(source, settings.documents)
    numbers = parse_page_range(document.page_range, info.pages)
    converter = registry.page_converter(settings, document.provider, document.model)
    # A worker that died here before may have died of a page, which is to fail alone.
    surveyed = numbers if document.attempts == 1 else []
    _survey(context, document.id, claim, converter, source, surveyed)
    if not converter.needs_images:
        return [(number, None) for number in numbers]
    folder = files.temp_folder(settings, document.id)
    folder.mkdir(parents=True, exist_ok=True)
    dpi = settings.providers[document.provider].image_dpi
    images: list[tuple[int, Path | None]] = []
    for number, image in render_pages(source, info.type, numbers, folder, dpi, settings.documents.max_pixels):
        images.append((number, image))
        if len(images) % RENEW_EVERY == 0:
            _renew(context, document.id, claim)
    return images


def _survey(
    context: Context, document_id: str, claim: Claim, converter: PageConverter, source: Path, numbers: list[int]
) -> None:
    """Keep what the pages should know of the whole document beside its source."""
    surveyed = count(1)

    def tick() -> None:
        if next(surveyed) % RENEW_EVERY == 0:
            _renew(context, document_id, claim)

    path = files.survey_path(context.settings, document_id)
    found = converter.survey(source, numbers, tick) if numbers else ""
    if found:
        files.write_text(path, found)
    else:
        path.unlink(missing_ok=True)


def _renew(context: Context, document_id: str, claim: Claim) -> None:
    until = datetime.now(UTC) + timedelta(seconds=context.settings.documents.lease_s)
    held = (
        update(DOCUMENTS)
        .where(DOCUMENTS.c.id == document_id, held_by(DOCUMENTS, claim))
        .values(lease_until=until)
        .returning(DOCUMENTS.c.id)
    )
    if context.db.run(lambda session: session.execute(held).one_or_none()) is None:
        raise ClaimLost


def _commit(session: Session, document: Any, claim: Claim, images: list[tuple[int, Path | None]]) -> None:
    now = datetime.now(UTC)
    moved = DOCUMENT.move(
        session, DOCUMENTS, DocumentEvent.SPLIT_DONE, DOCUMENTS.c.id == document.id, held_by(DOCUMENTS, claim),
        **FREE, pages=len(images), completed_count=0, failed_count=0, attempts=0, launches=0,
        progress=progress(DocumentStatus.PROCESSING, len(images), 0, 0), updated_at=now,
        launch_due_at=now + timedelta(seconds=RELAUNCH_AFTER_S),
    )  # fmt: skip
    if not moved:
        raise ClaimLost
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
