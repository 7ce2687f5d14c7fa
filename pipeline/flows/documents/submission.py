"""Submits files: checks them, refuses invalid ones before writing a row, and stores the others. Idempotent."""

import hashlib
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import accounts
from pipeline.engine.accounts import CALLER, Part
from pipeline.engine.errors import UserError
from pipeline.engine.tables import insert_if_absent, storable
from pipeline.engine.transaction import Tx
from pipeline.flows.documents import files, service
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.queries import document_view
from pipeline.flows.documents.rules.escalation import NEVER
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.views import DocumentView
from pipeline.providers import registry
from pipeline.reading.files.filetype import TEXT_TYPES
from pipeline.reading.files.source import SourceInfo, check_file, parse_page_range, safe_filename
from pipeline.reading.files.user_file import storage_error, write_text
from pipeline.reading.pdf import inspection
from pipeline.reading.sandbox.limits import Wanted
from pipeline.reading.text import units
from pipeline.settings import LOCAL
from pipeline.storage import installation
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PATIENCE_S = 5.0
"""How long a failed submission tries to learn whether its row exists."""


@dataclass(frozen=True)
class Options:
    """Options of a conversion. `pages`: such as `1-5,7`; empty: all. Empty provider and model: the settings' choice.

    `page_range` is the older name of `pages`, and the field that holds them.
    """

    page_range: str = ""
    provider: str = ""
    model: str = ""
    allow_partial: bool = False
    """Merge the other pages if some fail finally."""
    use_cache: bool = True
    pictures: bool = False
    """Store the pictures on the pages as files, linked from the Markdown; only local conversion and nodes can."""
    fresh: bool = False
    """Create a new document even if the same file was submitted before."""
    password: str = field(default="", repr=False)
    """Opens an encrypted PDF. Penstock stores a copy that needs none, and never the password."""
    escalate: str = ""
    """The provider to which doubtful and failed pages go; `none`: nowhere; empty: the settings' choice."""
    budget: str = ""
    """The most that this may cost: money, such as `2.00`, or pages, such as `20p`; empty: the settings' choice."""
    pages: InitVar[str] = ""

    def __post_init__(self, pages: str) -> None:
        if pages:
            object.__setattr__(self, "page_range", pages)


def submit(context: Context, path: Path, options: Options, original: Path | None = None) -> DocumentView:
    """Store a copy of the file and a row for it; the same content and options revive and return the existing document.
    Workers convert it later. `original`: the path to record as the file's own, if `path` is a temporary copy.

    Raises `UserError` for an invalid file, or in the cases of `check`, and then stores nothing.
    """
    check(context, options)
    check_file(path, context.settings.documents)  # refuse a folder, a missing or a huge file before copying it
    with files.incoming(context.settings, path) as copy:
        sha256 = hash_of(copy)
        info = inspect(context, copy, path.name, options)
        named = original or path
        source_path = str(named.parent.resolve() / named.name)
        return submit_copy(context, copy, path.name, options, info, sha256, source_path)


def inspect(context: Context, copy: Path, filename: str, options: Options, wanted: Wanted = lambda: True) -> SourceInfo:
    """Inspect a private copy of a submitted file, and replace it by one that needs no password if `options` has that of
    the PDF. Raises `UserError` and `Unwanted`."""
    name, limits = safe_filename(filename), context.settings.documents
    if options.password:
        inspection.decrypt(copy, name, limits, options.password, wanted)
    return units.inspect(copy, name, limits, wanted)


def check(context: Context, options: Options) -> None:
    """Raise `UserError` for options that are invalid for any file, if a running worker does not know the provider, or
    if the data folder is unusable or belongs to another database."""
    settings = context.settings
    try:
        installation.check(context.db, settings)
    except OSError as error:
        raise storage_error(error, settings.data_dir) from error
    provider = options.provider or settings.provider
    registry.check(settings, provider, options.model)
    if options.pictures and not registry.cuts_pictures(settings, provider):
        message = f"{provider} cannot extract pictures: only the provider {LOCAL} and inference nodes can"
        raise UserError(message, code="usage")
    registry.check_workers(context.redis, provider)
    if other := service.other_provider(settings, provider, options.escalate, options.budget)["escalate"]:
        registry.check_workers(context.redis, other)


def submit_copy(
    context: Context,
    copy: Path,
    filename: str,
    options: Options,
    info: SourceInfo,
    sha256: str,
    source_path: str = "",
) -> DocumentView:
    """Submit an inspected private copy: create a document, or revive the document of the same content and options.

    Moves the copy to its place, or leaves it if it is not needed. Call `check` before. `sha256`: the hash of the
    submitted content, from before a PDF was decrypted. `source_path`: the original's path on this machine.
    """
    settings = context.settings
    if info.type in TEXT_TYPES:  # no model reads them better than this machine, free of charge
        options = replace(options, provider=LOCAL, model="", escalate=NEVER, budget="")
    provider = options.provider or settings.provider
    numbers = parse_page_range(options.page_range, info.pages)
    pages = _shortest(numbers, info.pages)
    key = _submission_key(sha256, info.type, pages, provider, options)
    existing = _find(context, key)
    if existing is not None:
        source = files.source_path(settings, existing.id, info.type)
        if not source.exists():
            files.place(copy, source)
        return service.revive(
            context,
            existing.id,
            allow_partial=options.allow_partial,
            escalate=options.escalate,
            budget=options.budget,
        )
    now = context.db.now()
    row = {
        "submission_key": key,
        "filename": safe_filename(filename),
        "source_path": storable(source_path),
        "type": info.type,
        "page_range": pages,
        "provider": provider,
        "model": options.model,
        "size_bytes": info.size_bytes,
        "model_name": registry.model_name(settings, provider, options.model),
        "allow_partial": options.allow_partial,
        "use_cache": options.use_cache and settings.documents.cache,
        "pictures": options.pictures,
        **service.other_provider(settings, provider, options.escalate, options.budget),
        "status": DocumentStatus.PENDING,
        "created_at": now,
        "updated_at": now,
    }
    return _store(context, copy, row, len(numbers), info.texts)


def _store(context: Context, copy: Path, row: dict[str, Any], pages: int, texts: str) -> DocumentView:
    """Move the file to its place and insert the row; or return the document of a simultaneous, equal submission.

    Removes the file if that fails. `pages`: the number to reserve cost for; `texts`: what splitting would read again.
    """
    document_id, key = uuid4().hex[:16], row["submission_key"]

    def work(tx: Tx) -> DocumentView:
        # If a commit's answer was lost, the repeated transaction finds its own row.
        if insert_if_absent(tx, DOCUMENTS, {"id": document_id, **row}, "submission_key") and CALLER.get():
            each = service.page_cost(tx, row["provider"], row["model"])
            document = tx.execute(select(DOCUMENTS).where(DOCUMENTS.c.submission_key == key)).one()
            parts = [Part(pages, each), *service.escalation_parts(tx, document, pages)]
            accounts.admit(tx, "documents", {document_id: parts})
        document = tx.execute(select(DOCUMENTS).where(DOCUMENTS.c.submission_key == key)).one()
        tx.launch(service.FLOW, document.id)
        return document_view(context, document)

    try:
        files.place(copy, files.source_path(context.settings, document_id, row["type"]))  # no row ever lacks its file
        if texts:
            write_text(files.survey_path(context.settings, document_id), texts)
        view = context.db.run(work)
    except BaseException:
        _remove_unowned(context, document_id)
        raise
    if view.id != document_id:
        files.remove_all(context.settings, document_id)
        return view
    log.info("document.submitted", document=document_id, filename=row["filename"], type=row["type"])
    return view


def _remove_unowned(context: Context, document_id: str) -> None:
    """Remove the files of a document without a row. If the database does not answer, clean-up removes them later."""
    query = select(DOCUMENTS.c.id).where(DOCUMENTS.c.id == document_id)
    try:
        owned = context.db.run(lambda tx: tx.execute(query).first(), patience_s=PATIENCE_S)
    except SQLAlchemyError:
        return
    if not owned:
        files.remove_all(context.settings, document_id)


def _find(context: Context, key: str) -> DocumentView | None:
    with context.db.read() as session:
        row = session.execute(select(DOCUMENTS).where(DOCUMENTS.c.submission_key == key)).one_or_none()
    return document_view(context, row) if row else None


def hash_of(copy: Path) -> str:
    with copy.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _submission_key(content: str, file_type: str, pages: str, provider: str, options: Options) -> str:
    parts = [content, file_type, pages, provider, options.model]
    parts += ["pictures"] if options.pictures else []
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{key}:{uuid4().hex[:12]}" if options.fresh else key


def _shortest(numbers: list[int], pages: int) -> str:
    """Return the shortest page range for these numbers; empty for all pages."""
    if len(numbers) == pages:
        return ""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
