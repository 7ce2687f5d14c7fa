"""`penstock documents cancel`, `retry`, `delete` …: act on documents."""

from typing import Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.documents.document import Id, Wait, carry_out, resolved
from pipeline.interfaces.cli.output import confirm, err, one_line

Provider = Annotated[str, typer.Option(help="Use this provider for these pages.")]
Model = Annotated[str, typer.Option(help="Use this model for these pages.")]


def cancel(document_id: Id) -> None:
    """Cancel a document. Penstock discards the results of pages in progress."""
    from pipeline.operations.documents import cancel as act

    full_id = resolved(document_id)
    carry_out(lambda: act(full_id), "cancelled")


def pause(document_id: Id) -> None:
    """Let pages in progress finish, and start no others until `resume`."""
    from pipeline.operations.documents import pause as act

    full_id = resolved(document_id)
    carry_out(lambda: act(full_id), "paused")


def resume(document_id: Id, wait: Wait = False) -> None:
    """Continue a paused document."""
    from pipeline.operations.documents import resume as act

    full_id = resolved(document_id)
    carry_out(lambda: act(full_id), "resumed", wait=wait)


def retry(
    document_id: Id,
    failed: Annotated[bool, typer.Option("--failed", help="Only the failed pages; default: everything.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Call the provider again, even for cached pages.")] = False,
    provider: Provider = "",
    model: Model = "",
    wait: Wait = False,
) -> None:
    """Convert a document again, or its failed pages."""
    from pipeline.operations.documents import retry as act
    from pipeline.operations.documents import retry_failed, status

    full_id = resolved(document_id)
    if not failed:
        done = "will be converted again"
        carry_out(lambda: act(full_id, provider=provider, model=model, fresh=fresh), done, wait=wait)
        return
    before = status(full_id)
    is_incomplete = before.failed_count > 0 or before.status.name in {"FAILED", "PARTIAL_FAILED"}
    if before.failed_count:
        done = "failed pages will be converted again"
    else:
        done = "missing pages will be converted" if is_incomplete else "no page has failed, nothing to do"
    carry_out(lambda: retry_failed(full_id, provider=provider, model=model), done, wait=wait and is_incomplete)


def retry_page(document_id: Id, page: int, provider: Provider = "", model: Model = "", wait: Wait = False) -> None:
    """Convert one page again. It keeps its old text until the new one is ready."""
    from pipeline.operations.documents import retry_page as act

    full_id, done = resolved(document_id), f"page {page} will be converted again"
    carry_out(lambda: act(full_id, page, provider=provider, model=model), done, wait=wait)


def escalate(
    document_id: Id,
    provider: Annotated[str, typer.Option(help="Where the pages go. Default: where the document's pages went.")] = "",
    budget: Annotated[
        str,
        typer.Option(
            metavar="MOST",
            help="The most to spend now: 2.00 (money) or 20p (pages). Default: that of the settings, or no limit.",
        ),
    ] = "",
    wait: Wait = False,
) -> None:
    """Send doubtful and failed pages to another provider, and keep the better text of each.

    [bold]penstock documents escalate 3f2a --provider openai --budget 2.00[/bold]
    """
    from pipeline.operations.documents import escalate as act
    from pipeline.operations.documents import status

    full_id = resolved(document_id)
    before = status(full_id)
    carry_out(
        lambda: act(full_id, provider=provider, budget=budget),
        lambda now: (
            f"{count(now.escalated_pages - before.escalated_pages, 'page')} sent to {now.escalate}"
            + ("" if now.budget else ", without a limit of cost (--budget sets one)")
        ),
        wait=wait,
        before=before,
    )


def promote(document_id: Id, page: int, attempt: int, wait: Wait = False) -> None:
    """Make the text of an older attempt the page's text (see `attempts`)."""
    from pipeline.operations.documents import promote as act

    full_id, done = resolved(document_id), f"page {page} has the text of attempt {attempt}"
    carry_out(lambda: act(full_id, page, attempt), done, wait=wait)


def remerge(
    document_id: Id,
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Mark the gaps where pages failed.")] = False,
    wait: Wait = False,
) -> None:
    """Merge a document's pages into its Markdown again."""
    from pipeline.operations.documents import remerge as act

    full_id = resolved(document_id)
    carry_out(lambda: act(full_id, allow_partial=allow_partial), "will be merged again", wait=wait)


def delete(
    document_ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids, or the beginnings of ids.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete documents with their pages, attempts and stored files. Results that you wrote elsewhere stay."""
    from pipeline.engine.errors import UserError
    from pipeline.operations.documents import delete as act
    from pipeline.operations.documents import status
    from pipeline.storage.short_ids import LEAST_BESIDE_NAMES

    if yes and (short := [prefix for prefix in document_ids if len(prefix) < LEAST_BESIDE_NAMES]):
        raise UserError(
            f"{short[0]} is too short an id to delete by without being asked: give {LEAST_BESIDE_NAMES} characters "
            "or more",
            code="usage",
        )
    found = [status(found) for found in dict.fromkeys(resolved(prefix) for prefix in document_ids)]
    if not yes:
        confirm(f"Delete {', '.join(document.filename for document in found)}?")
    for document in found:
        act(document.id)
        err.print(f"{document.id} {one_line(document.filename)}: deleted", soft_wrap=True)
