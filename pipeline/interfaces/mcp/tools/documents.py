"""Tools that convert a document, and show the state of documents and items."""

from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync
from pydantic import BaseModel, Field, StringConstraints, model_validator

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, submission
from pipeline.flows.documents.queries import UnknownDocument
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.views import DocumentView
from pipeline.flows.knowledge.queries import UnknownItem
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.views import ItemView, ShownItem, shown_item
from pipeline.interfaces.http.fields import Choice, HexId, Line
from pipeline.interfaces.http.identity import TICKETED
from pipeline.interfaces.http.remote import fetched
from pipeline.interfaces.http.submission import PAGES, Budget, PageRange
from pipeline.interfaces.http.uploads import File
from pipeline.interfaces.mcp.tool import Arguments, Call, Toolbox
from pipeline.interfaces.mcp.tools.pages import Excerpt, excerpt
from pipeline.interfaces.mcp.tools.progress import WaitS, followed, no_worker
from pipeline.operations import documents as flow
from pipeline.operations import knowledge
from pipeline.operations.documents import Document, explained
from pipeline.operations.refusal import Refused
from pipeline.reading.files.source import check_file, safe_filename
from pipeline.storage import upload_tickets

BOX = Toolbox()


class Conversion(Arguments):
    """How to convert a file."""

    page_range: PageRange = Field(
        default="", description="Such as `1-5,7`; empty for all pages.", validation_alias=PAGES
    )
    provider: Choice = Field(default="", description="A configured provider; empty for the server's choice.")
    model: Choice = ""
    fresh: bool = Field(default=False, description="Make a new document even if one of the same file exists.")
    allow_partial: bool = Field(default=True, description="Merge the completed pages though others failed.")
    escalate: Choice = Field(default="", description="The provider for doubtful and failed pages; `none`: leave them.")
    budget: Budget = ""
    wait_s: WaitS = 45


class Address(Conversion):
    """A file that the server fetches, or that the client has sent."""

    url: Line = Field(default="", description="http or https, of a PDF or a picture.")
    upload: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,32}$")] = Field(
        default="", description="Instead of a url: the id of a file that was sent as request_upload says."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_path(cls, values: Any) -> Any:
        if isinstance(values, dict) and "path" in values:
            raise ValueError(
                "a path would name a file of the server, which this tool does not read: send the file as "
                "request_upload says, and give its upload"
            )
        return values

    @model_validator(mode="after")
    def _exactly_one(self) -> "Address":
        if bool(self.url) is bool(self.upload):
            raise ValueError("give either a url or an upload")
        return self


class FileOrAddress(Conversion):
    """A file on this machine, or at an address."""

    path: Line = Field(default="", description="The absolute path of a PDF or a picture on this machine.")
    url: Line = Field(default="", description="Instead of a path: http or https.")

    @model_validator(mode="after")
    def _exactly_one(self) -> "FileOrAddress":
        if bool(self.path) is bool(self.url):
            raise ValueError("give either a path or a url")
        return self


class Status(BaseModel):
    """The state of a document, or of an item of a knowledge base."""

    document: DocumentView | None = None
    item: ShownItem | None = None
    next: str = Field(description="The next step.")


class Converted(BaseModel):
    """A document, and the beginning of its Markdown if that is ready."""

    document: DocumentView
    beginning: Excerpt | None = None
    next: str = Field(description="The next step.")


@BOX.tool(
    "Convert a document to Markdown",
    over_http=Address,
    over_stdio=FileOrAddress,
    writes=True,
    spends=True,
    open_world=True,
)
async def convert_document(call: Call, arguments: Address | FileOrAddress) -> Converted:
    """Convert a PDF, a picture, an office file, EPUB, HTML, e-mail or text to Markdown; wait up to wait_s seconds.

    Returns the document with its id, and the beginning of its Markdown once that is ready. If conversion takes longer,
    it continues: call get_status. Penstock converts the same file with the same options only once.
    """
    chosen = {"page_range", "provider", "model", "fresh", "allow_partial", "escalate", "budget"}
    options = Options(**arguments.model_dump(include=chosen))
    await call.report(0, None, "checking the file")
    if isinstance(arguments, FileOrAddress) and arguments.path:
        document = await run_sync(_submit_path, call, arguments.path, options)
    elif isinstance(arguments, Address) and arguments.upload:
        document = await run_sync(_submit_sent, call, arguments.upload, options)
    else:
        async with fetched(call.caller, arguments.url) as file:
            document = await run_sync(_submit, call, file, options)
    document = await _settled(call, document.id, arguments.wait_s)
    beginning = await run_sync(excerpt, document) if document.merged_path and not document.outdated else None
    shown, now = await run_sync(_shown, call, document)
    return Converted(document=shown, beginning=beginning, next=now)


def _submit_path(call: Call, text: str, options: Options) -> Document:
    """Submit a copy of a file of this machine, as an upload. Raises `UserError` for a relative path, wrong options or a
    refused file."""
    path, settings = Path(text).expanduser(), call.caller.context.settings
    if not path.is_absolute():
        raise UserError(f"{text} is not an absolute path: write it from the root on", code="relative_path")
    submission.check(call.caller.context, options)
    check_file(path, settings.documents)
    with files.incoming(settings, path) as copy:
        file = File("file", path.name, copy)
        file.measure()
        return _submit(call, file, options)


def _submit_sent(call: Call, upload: str, options: Options) -> Document:
    """Submit a file that the caller has sent; a refused one may be submitted again. Raises `Refused` if none waits."""
    context, owner = call.caller.context, call.caller.id
    waiting = upload_tickets.claim(context, upload, owner)
    path = context.settings.upload_dir / waiting.path if waiting else None
    if waiting is None or path is None or not path.is_file():
        message = f"no file of yours waits as upload {upload}: it was submitted, has expired, or was never sent"
        raise Refused(message, code="unknown_upload")
    try:
        document = flow.submit_upload.by(call.caller, path, waiting.filename, options, waiting.sha256)
    except BaseException:
        upload_tickets.keep(context, upload, waiting)
        raise
    path.unlink(missing_ok=True)  # an earlier document of the same file leaves it
    return document


class WhichFile(Arguments):
    """The file to send."""

    filename: Annotated[Line, Field(min_length=1, max_length=255, description="Its name, with its suffix.")]


class Upload(BaseModel):
    """Where to send a file, and with which headers."""

    upload: str = Field(description="The id for convert_document.")
    method: str = "PUT"
    url: str
    headers: dict[str, str]
    expires_in_s: int
    next: str = Field(description="The next step.")


@BOX.tool("Prepare to send a file", writes=True, idempotent=False, only_http=True)
def request_upload(call: Call, arguments: WhichFile) -> Upload:
    """Prepare to send a file of the client's machine, without Base64: returns an address and a ticket for one upload.

    PUT the file's bytes there with these headers within ten minutes, then call convert_document with upload.
    """
    caller = call.caller
    secret, ticket = upload_tickets.issue(
        caller.context, caller.id, caller.name, safe_filename(arguments.filename), has_key=caller.has_key
    )
    url = f"{call.base_url}{TICKETED}{ticket.upload_id}"
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/octet-stream"}
    sent = " ".join(f"-H '{name}: {value}'" for name, value in headers.items())
    return Upload(
        upload=ticket.upload_id,
        url=url,
        headers=headers,
        expires_in_s=upload_tickets.TICKET_S,
        next=f"Send it once: curl -T FILE {sent} {url}. Then call convert_document with upload {ticket.upload_id}.",
    )


def _submit(call: Call, file: File, options: Options) -> Document:
    return flow.submit_upload.by(call.caller, file.path, file.filename, options, file.sha256)


async def _settled(call: Call, document_id: str, wait_s: float) -> Document:
    def steps(now: Document) -> tuple[float, float | None, str]:
        done = now.completed_count + now.failed_count
        return done, now.pages or None, f"{done} of {now.pages} pages" if now.pages else "counting the pages"

    return await followed(call, lambda: flow.status(document_id), lambda now: now.settled, steps, wait_s)


def _shown(call: Call, document: Document) -> tuple[DocumentView, str]:
    """(a document with the reason for its state, an assistant's next step). Blocks."""
    (shown,) = explained([document])
    reason = shown.reason
    if not document.settled:
        why = f": {reason.words}" if reason else ""
        done = f"{document.completed_count} of {document.pages or '?'} pages are converted{why}".rstrip(".")
        return shown, f"{done}. Call get_status with wait_s to wait for it."
    see = "See list_failures, and retry" if call.may_write else "See list_failures; a person retries in the console"
    failed = f" {document.failed_count} pages failed. {see}." if document.failed_count else ""
    if document.merged_path:
        return shown, f"Read it with get_markdown.{failed}"
    if document.status is DocumentStatus.PAUSED:
        return shown, "It is paused. A person resumes it in the console, or with `penstock documents resume`."
    if document.status is DocumentStatus.CANCELLED:
        restart = "Use retry with all_pages" if call.may_write else "A person restarts it in the console"
        return shown, f"It was cancelled. {restart} to convert it after all."
    return shown, f"It is {document.status.name}.{failed or f' {see}.'}"


class WhichStatus(Arguments):
    """The document or item, and how long to wait for it."""

    id: HexId = Field(description="The id of a document, or of an item of a knowledge base.")
    wait_s: WaitS = 0


@BOX.tool("Show the state of a document")
async def get_status(call: Call, arguments: WhichStatus) -> Status:
    """Show the state of a document or an item of a knowledge base; with wait_s, wait until it is done."""
    if await run_sync(flow.several, [arguments.id]):
        document = await _settled(call, arguments.id, arguments.wait_s)
        shown, now = await run_sync(_shown, call, document)
        return Status(document=shown, next=now)
    try:
        item = await settled_item(call, arguments.id, arguments.wait_s)
    except UnknownItem:
        raise UnknownDocument(arguments.id) from None
    return Status(item=item, next=await run_sync(next_of_item, call, item))


async def settled_item(call: Call, item_id: str, wait_s: float) -> ShownItem:
    """Wait for an item of a knowledge base, at most `wait_s`; return its state then."""

    def steps(now: ItemView) -> tuple[float, float | None, str]:
        return now.progress, 100, now.status

    view = await followed(
        call, lambda: knowledge.item(item_id), lambda now: now.at_rest and not now.deleting, steps, wait_s
    )
    standings = await run_sync(knowledge.standings, [item_id])
    return shown_item(view, standing=standings.get(item_id))


def next_of_item(call: Call, item: ShownItem) -> str:
    """An assistant's next step with an item in this state. Blocks."""
    if item.status is ItemStatus.FAILED:
        return f"It failed: see its error{', and retry' if call.may_write else ''}."
    if item.status is ItemStatus.COMPLETED:
        return "Call search_knowledge."
    return f"Call get_status with wait_s to wait for it. {no_worker(call.caller.context)}".strip()
