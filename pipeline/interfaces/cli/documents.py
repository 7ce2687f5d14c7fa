"""`penstock documents …`: show documents, and act on them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.views import plain
from pipeline.interfaces.cli.command import Format, Json, ready, ready_context, tell_if_nothing_runs
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from tasks.documents import AttemptView, Document, PageView

app = typer.Typer(
    help="List and show documents; cancel, pause, resume, retry, merge again, delete.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Id = Annotated[str, typer.Argument(metavar="ID", help="The document's id, or the beginning of it.")]
AsFormat = Annotated[
    Format, typer.Option("--format", help="md: Markdown; json: blocks with their boxes; docling: a DoclingDocument.")
]
Provider = Annotated[str, typer.Option(help="Use this provider for the pages concerned.")]
Model = Annotated[str, typer.Option(help="Use this model for the pages concerned.")]


def _find(prefix: str) -> str:
    from pipeline.flows.documents.queries import resolve

    return resolve(ready_context(), prefix)


def _tell(document: "Document", done: str) -> None:
    name = one_line(document.filename)
    err.print(f"{document.id} {name}: {done}. Now {state(document.status.name)}", soft_wrap=True)
    if not document.settled:
        tell_if_nothing_runs()


@app.command("list")
def list_(
    status: Annotated[str, typer.Option(help="Only those in this state, such as FAILED.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000)] = 50,
    as_json: Json = False,
) -> None:
    """List documents, newest first."""
    from tasks.documents import DocumentStatus, UserError, list_documents

    ready()
    if status and status.upper() not in DocumentStatus.__members__:
        known = ", ".join(DocumentStatus.__members__)
        raise UserError(f"there is no state '{status}'; choose from {known}", code="usage")

    def row(document: "Document") -> list[str]:
        pages = f"{document.completed_count}/{document.pages}" if document.pages else ""
        return [
            document.id, one_line(document.filename), state(document.status.name), pages,
            f"{document.progress} %", one_line(document.provider), ago(document.updated_at),
        ]  # fmt: skip

    print_list(
        list_documents(status=DocumentStatus[status.upper()] if status else None, limit=limit),
        ("ID", "FILE~", "STATE", "PAGES>", "PROGRESS>?", "PROVIDER?", "CHANGED"), row, as_json=as_json,
        none="No document is in this state." if status else "No documents. `penstock convert FILE` makes one.",
    )  # fmt: skip


@app.command()
def show(document_id: Id, as_json: Json = False) -> None:
    """Show everything about a document."""
    from tasks.documents import status

    document = status(_find(document_id))
    if as_json:
        print_json(document)
        return
    shown = {name: value for name, value in plain(document).items() if value not in (None, "")}
    shown |= {name: value[:19].replace("T", " ") + " UTC" for name, value in shown.items() if name.endswith("_at")}
    print_pairs(
        [
            (name.replace("_", " "), state(value) if name == "status" else one_line(str(value)))
            for name, value in shown.items()
        ]
    )


@app.command()
def pages(
    document_id: Id,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed pages, with the reasons.")] = False,
    as_json: Json = False,
) -> None:
    """List a document's pages: state, attempts, error, length of the text."""
    from tasks.documents import PageStatus
    from tasks.documents import pages as find

    def row(page: "PageView") -> list[str]:
        return [
            str(page.page), str(page.page_source), state(page.status.name), str(page.attempts), str(len(page.content)),
            one_line(f"{page.provider} {page.model}"), one_line(page.error),
        ]  # fmt: skip

    print_list(
        find(_find(document_id), status=PageStatus.FAILED if failed else None),
        ("PAGE>", "IN FILE>?", "STATE", "ATTEMPTS>?", "CHARACTERS>?", "PROVIDER?", "ERROR"), row, as_json=as_json,
        none="No page has failed." if failed else "There are no pages yet.",
    )  # fmt: skip


@app.command()
def attempts(
    document_id: Id,
    page: Annotated[int | None, typer.Argument(help="One page; default: all.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Show the texts instead.")] = False,
    as_json: Json = False,
) -> None:
    """List every attempt of a document's pages: model, tokens, time, how it ended."""
    from tasks.documents import attempts as find

    def row(attempt: "AttemptView") -> list[str]:
        ended = attempt.status + (" (cache)" if attempt.cached else "") + ("" if attempt.effective else " (discarded)")
        model = "" if attempt.model == attempt.provider else attempt.model
        return [
            str(attempt.id), str(attempt.page), ended, one_line(f"{attempt.provider} {model}".strip()),
            str(attempt.input_tokens), str(attempt.output_tokens), str(attempt.latency_ms), one_line(attempt.error),
        ]  # fmt: skip

    found = find(_find(document_id), page)
    if text and found and not as_json:
        for attempt in found:
            typer.echo(f"<!-- attempt {attempt.id}, page {attempt.page}: {attempt.status} -->\n\n{attempt.text}\n")
        return
    print_list(
        found, ("ATTEMPT>", "PAGE>", "ENDED", "MODEL?", "TOKENS IN>?", "OUT>?", "MS>?", "ERROR"), row,
        as_json=as_json, none="There are no attempts" + (f" of page {page}." if page else "."),
    )  # fmt: skip


@app.command()
def text(document_id: Id, format_: AsFormat = Format.MD) -> None:
    """Print a document's Markdown, the blocks on its pages, or a DoclingDocument."""
    from tasks.documents import status

    document = status(_find(document_id))
    if format_ is Format.JSON:
        print_json(document.layout())
    elif format_ is Format.DOCLING:
        print_json(document.docling())
    else:
        typer.echo(document.read_text(), nl=False)


@app.command()
def cancel(document_id: Id) -> None:
    """Stop a document for good. Results of pages in progress are discarded."""
    from tasks.documents import cancel as act

    _tell(act(_find(document_id)), "cancelled")


@app.command()
def pause(document_id: Id) -> None:
    """Let pages in progress finish, and start no others until `resume`."""
    from tasks.documents import pause as act

    _tell(act(_find(document_id)), "paused")


@app.command()
def resume(document_id: Id) -> None:
    """Continue a paused document."""
    from tasks.documents import resume as act

    _tell(act(_find(document_id)), "resumed")


@app.command()
def retry(
    document_id: Id,
    failed: Annotated[bool, typer.Option("--failed", help="Only the failed pages; default: everything.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask the provider again, even for cached pages.")] = False,
    provider: Provider = "",
    model: Model = "",
) -> None:
    """Convert a document again, or its failed pages."""
    from tasks.documents import retry as again
    from tasks.documents import retry_failed

    found = _find(document_id)
    if failed:
        _tell(retry_failed(found, provider=provider, model=model), "failed pages will be converted again")
    else:
        _tell(again(found, provider=provider, model=model, fresh=fresh), "will be converted again")


@app.command("retry-page")
def retry_page(document_id: Id, page: int, provider: Provider = "", model: Model = "") -> None:
    """Convert one page again. It keeps its old text until the new one is ready."""
    from tasks.documents import retry_page as act

    _tell(act(_find(document_id), page, provider=provider, model=model), f"page {page} will be converted again")


@app.command()
def promote(document_id: Id, page: int, attempt: int) -> None:
    """Make the text of an older attempt the page's text (see `attempts`)."""
    from tasks.documents import promote as act

    _tell(act(_find(document_id), page, attempt), f"page {page} has the text of attempt {attempt}")


@app.command()
def remerge(
    document_id: Id,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Mark the gaps where pages failed.")] = False,
) -> None:
    """Merge a document's pages into its Markdown again."""
    from tasks.documents import remerge as act

    _tell(act(_find(document_id), allow_partial=allow_partial), "will be merged again")


@app.command()
def delete(
    document_ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids, or the beginnings of ids.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete documents with their pages, attempts and stored files. Results written elsewhere stay."""
    from tasks.documents import delete as act
    from tasks.documents import status

    found = [status(found) for found in dict.fromkeys(_find(prefix) for prefix in document_ids)]
    if not yes:
        typer.confirm(f"Delete {', '.join(document.filename for document in found)}?", abort=True, err=True)
    for document in found:
        act(document.id)
        err.print(f"{document.id} {one_line(document.filename)}: deleted", soft_wrap=True)


@app.command()
def export(
    document_id: Id,
    output: Annotated[Path, typer.Argument(help="The file to write, or a folder for NAME.md.")],
    format_: AsFormat = Format.MD,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a document's Markdown, its blocks or a DoclingDocument to a file, with its manifest beside it."""
    from pipeline.flows.documents.files import stem, storage_error
    from pipeline.interfaces.cli.results import write
    from tasks.documents import UserError, status

    document = status(_find(document_id))
    target = output / f"{stem(document.filename)}{format_.suffix}" if output.is_dir() else output
    if target.exists() and not force:
        raise UserError(f"{target} exists and is kept: use --force to replace it", code="exists")
    try:
        write(document, target, format_)
    except OSError as error:
        raise storage_error(error, target) from error
    err.print(f"{document.id} {one_line(document.filename)} → [bold]{one_line(str(target))}[/bold]", soft_wrap=True)
