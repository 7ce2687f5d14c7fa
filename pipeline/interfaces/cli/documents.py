"""`penstock documents …`: looking at documents, and what can be asked of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.results import Format

if TYPE_CHECKING:
    from tasks.documents import AttemptView, Document

app = typer.Typer(
    help="List and look at documents; cancel, pause, resume, retry, merge again, delete.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Id = Annotated[str, typer.Argument(metavar="ID", help="The document's id, or the beginning of it.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
AsFormat = Annotated[Format, typer.Option("--format", help="md: Markdown; json: blocks with their boxes.")]
Provider = Annotated[str, typer.Option(help="Another provider for the pages concerned.")]
Model = Annotated[str, typer.Option(help="Another model for the pages concerned.")]


def _find(prefix: str) -> str:
    from pipeline.flows.documents.queries import resolve
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import migrate_embedded
    from pipeline.storage.context import get_context

    migrate_embedded(get_settings())
    return resolve(get_context(), prefix)


def _tell(document: "Document", done: str) -> None:
    """Say what was done; where nothing runs that could go on with it, say how to start it."""
    from pipeline.interfaces.cli.output import err, one_line, state
    from pipeline.storage.context import get_context

    name = one_line(document.filename)
    err.print(f"{document.id} {name}: {done}. Now {state(document.status.name)}", soft_wrap=True)
    if not document.settled and not get_context().online:
        err.print("Nothing is running here: `penstock up` goes on with it.")


@app.command("list")
def list_(
    status: Annotated[str, typer.Option(help="Only those in this state, such as FAILED.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000)] = 50,
    as_json: Json = False,
) -> None:
    """List documents, the newest first."""
    from pipeline.flows.documents.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, ago, err, one_line, print_json, state
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import migrate_embedded
    from tasks.documents import DocumentStatus, UserError, list_documents

    migrate_embedded(get_settings())
    if status and status.upper() not in DocumentStatus.__members__:
        known = ", ".join(DocumentStatus.__members__)
        raise UserError(f"there is no state '{status}'; there are {known}", code="usage")
    found = list_documents(status=DocumentStatus[status.upper()] if status else None, limit=limit)
    if as_json:
        print_json([plain(document) for document in found])
        return
    if not found:
        err.print("No document is in this state." if status else "No documents. `penstock convert FILE` makes one.")
        return
    rows = Table("ID", "FILE~", "STATE", "PAGES>", "PROGRESS>?", "PROVIDER?", "CHANGED")
    for document in found:
        pages = f"{document.completed_count}/{document.pages}" if document.pages else ""
        rows.add(
            document.id, one_line(document.filename), state(document.status.name), pages,
            f"{document.progress} %", one_line(document.provider), ago(document.updated_at),
        )  # fmt: skip
    rows.print()


@app.command()
def show(document_id: Id, as_json: Json = False) -> None:
    """Show everything about a document."""
    from pipeline.flows.documents.views import as_json as plain
    from pipeline.interfaces.cli.output import one_line, print_json, print_pairs, state
    from tasks.documents import status

    document = status(_find(document_id))
    if as_json:
        print_json(plain(document))
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
    from pipeline.flows.documents.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, err, one_line, print_json, state
    from tasks.documents import PageStatus
    from tasks.documents import pages as find

    found = find(_find(document_id), status=PageStatus.FAILED if failed else None)
    if as_json:
        print_json([plain(page) for page in found])
        return
    if not found:
        err.print("No page has failed." if failed else "There are no pages yet.")
        return
    rows = Table("PAGE>", "IN FILE>?", "STATE", "ATTEMPTS>?", "CHARACTERS>?", "PROVIDER?", "ERROR")
    for page in found:
        rows.add(
            str(page.page), str(page.page_source), state(page.status.name), str(page.attempts), str(len(page.content)),
            one_line(f"{page.provider} {page.model}"), one_line(page.error),
        )  # fmt: skip
    rows.print()


@app.command()
def attempts(
    document_id: Id,
    page: Annotated[int | None, typer.Argument(help="One page; default: all.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Show the texts instead.")] = False,
    as_json: Json = False,
) -> None:
    """List every attempt of a document's pages: model, tokens, time, how it ended."""
    from pipeline.flows.documents.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, err, one_line, print_json
    from tasks.documents import attempts as find

    found = find(_find(document_id), page)
    if as_json:
        print_json([plain(attempt) for attempt in found])
        return
    if not found:
        err.print("There are no attempts" + (f" of page {page}." if page else "."))
    if text:
        for attempt in found:
            typer.echo(f"<!-- attempt {attempt.id}, page {attempt.page}: {attempt.status} -->\n\n{attempt.text}\n")
    elif found:
        rows = Table("ATTEMPT>", "PAGE>", "ENDED", "MODEL?", "TOKENS IN>?", "OUT>?", "MS>?", "ERROR")
        for attempt in found:
            rows.add(
                str(attempt.id), str(attempt.page), _ended(attempt), one_line(_model(attempt)),
                str(attempt.input_tokens), str(attempt.output_tokens), str(attempt.latency_ms), one_line(attempt.error),
            )  # fmt: skip
        rows.print()


def _ended(attempt: "AttemptView") -> str:
    return attempt.status + (" (cache)" if attempt.cached else "") + ("" if attempt.effective else " (discarded)")


def _model(attempt: "AttemptView") -> str:
    return attempt.provider if attempt.model in {"", attempt.provider} else f"{attempt.provider} {attempt.model}"


@app.command()
def text(
    document_id: Id,
    format_: AsFormat = Format.MD,
) -> None:
    """Print a document's Markdown, or what stands where on its pages."""
    from pipeline.interfaces.cli.output import print_json
    from tasks.documents import status

    document = status(_find(document_id))
    if format_ is Format.JSON:
        print_json(document.layout())
    else:
        typer.echo(document.read_text(), nl=False)


@app.command()
def cancel(document_id: Id) -> None:
    """Stop a document for good. Results of pages under way are discarded."""
    from tasks.documents import cancel as act

    _tell(act(_find(document_id)), "cancelled")


@app.command()
def pause(document_id: Id) -> None:
    """Let pages under way end, and begin no others until `resume`."""
    from tasks.documents import pause as act

    _tell(act(_find(document_id)), "paused")


@app.command()
def resume(document_id: Id) -> None:
    """Go on with a paused document."""
    from tasks.documents import resume as act

    _tell(act(_find(document_id)), "resumed")


@app.command()
def retry(
    document_id: Id,
    failed: Annotated[bool, typer.Option("--failed", help="Only the failed pages; default: everything.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask the provider again even where the cache knows.")] = False,
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
    """Convert one page again. Its old text stays until the new one is there."""
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
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Mark gaps where pages failed.")] = False,
) -> None:
    """Write a document's Markdown again from its pages."""
    from tasks.documents import remerge as act

    _tell(act(_find(document_id), allow_partial=allow_partial), "will be merged again")


@app.command()
def delete(
    document_ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids, or beginnings of them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete documents with their pages, attempts and stored files. Files you wrote elsewhere stay."""
    from pipeline.interfaces.cli.output import err, one_line
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
    """Write a document's Markdown, or its blocks as JSON, to a file, with its manifest beside it."""
    from pipeline.flows.documents.files import stem, storage_error
    from pipeline.interfaces.cli.output import err, one_line
    from pipeline.interfaces.cli.results import write
    from tasks.documents import UserError, status

    document = status(_find(document_id))
    target = output / f"{stem(document.filename)}.{format_}" if output.is_dir() else output
    if target.exists() and not force:
        raise UserError(f"{target} exists and is kept: use --force to replace it", code="exists")
    try:
        write(document, target, format_)
    except OSError as error:
        raise storage_error(error, target) from error
    err.print(f"{document.id} {one_line(document.filename)} → [bold]{one_line(str(target))}[/bold]", soft_wrap=True)
