"""`penstock connect paperless`: takes documents by tag from a paperless-ngx, and writes the results back."""

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine import losses
from pipeline.engine.errors import UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import all_settings, ready
from pipeline.interfaces.cli.convert import options as given
from pipeline.interfaces.cli.output import err, one_line, print_list
from pipeline.interfaces.cli.times import duration_s, span

if TYPE_CHECKING:
    from pipeline.flows.documents.submission import Options
    from pipeline.interfaces.cli.connect.client import Paperless, PaperlessDocument
    from pipeline.interfaces.cli.connect.record import Records
    from pipeline.interfaces.cli.connect.rules import Part

TOKEN = "PENSTOCK_PAPERLESS_TOKEN"  # noqa: S105  # the variable's name
FAILED_TAG = "penstock-failed"
_NONE = "No document has the tag: nothing to do."


def paperless(
    address: Annotated[str, typer.Argument(metavar="URL", help="The address at which the browser shows paperless.")],
    tag: Annotated[str, typer.Option(help="Take the documents with this tag.")] = "penstock",
    done_tag: Annotated[str, typer.Option(help="The tag that replaces it on success. Empty: none.")] = "penstock-done",
    write: Annotated[
        str, typer.Option(metavar="PARTS", help="text, title or pdf (searchable), several with commas.")
    ] = "text",
    provider: given.Provider = "",
    model: given.Model = "",
    every: Annotated[str, typer.Option(metavar="TIME", help="Look again after this time, such as 60s.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Look once, and end. The default.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Take at most this many each time.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(dir_okay=False, help=f"A file with the API token. Default: {TOKEN}, or ask.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the documents with the tag.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Drop the work on documents without the tag, even if most lost it.")
    ] = False,
) -> None:
    """Convert the documents of a paperless-ngx that have a tag, and write text, title or a searchable PDF back.

    [bold]penstock connect paperless https://paperless.lan[/bold]
    [bold]penstock connect paperless https://paperless.lan --write text,title --provider ollama --every 60s[/bold]

    One request replaces a document's text, title and tag, so each is written back once; start the command again after
    Ctrl-C or a crash, and it continues. A document that fails gets the tag penstock-failed. A text that a user edits in
    the meantime stays.

    With [bold]--write pdf[/bold] paperless gets the original with a text layer, as the document's next version (before
    paperless 3: as a document of its own).

    The API token comes from PENSTOCK_PAPERLESS_TOKEN, from --token-file or from the terminal. The address may be
    private. The command follows no redirects, so no other host receives the token.

    Exit codes: 0 done, 1 some documents failed or were left, 2 wrong usage, 130 interrupted.
    """
    if once and every:
        raise UserError("--once looks once, and --every again and again: choose one", code="usage")
    pause_s = duration_s(every)
    names = [name.strip() for name in (tag, done_tag, FAILED_TAG)]
    if not names[0] or len({name.casefold() for name in names}) < len(names):
        raise UserError("--tag, --done-tag and penstock-failed must be different tags", code="usage")
    settings = all_settings()
    from pipeline.flows.documents.submission import Options
    from pipeline.interfaces.cli.connect.client import Paperless, PaperlessError
    from pipeline.interfaces.cli.connect.record import Records
    from pipeline.interfaces.cli.connect.rules import Part
    from pipeline.standalone.locks import FileLock

    try:
        parts = frozenset(Part(part.strip()) for part in write.split(","))
    except ValueError:
        raise UserError(f"--write takes {', '.join(Part)}, several with commas", code="usage") from None
    options = given.Wish(Options(provider=provider, model=model)).options
    server = Paperless(address, _token(token_file), settings.documents.max_upload_mb * 1_000_000)
    if dry_run:
        print_list(
            _tagged(server, names[0], limit)[1],
            ("ID>", "TITLE~", "FILE~"),
            lambda row: [str(row.id), one_line(row.title), one_line(row.name)],
            as_json=False,
            none=_NONE,
        )
        return
    ready()
    folder = settings.data_dir / "connect" / hashlib.sha256(f"{server.address}\n{names[0]}".encode()).hexdigest()[:16]
    with FileLock(folder / "lock") as lock:
        if not lock.acquire():
            raise UserError(f"another command takes the documents with the tag {names[0]} from there", code="busy")
        first = True
        with suppress(KeyboardInterrupt) if pause_s else nullcontext():
            while True:
                try:
                    outcomes = _turn(server, names, parts, options, Records(folder), limit, quiet=not first, yes=yes)
                    first = False
                except PaperlessError as error:
                    if pause_s is None or not error.is_down:
                        raise
                    note = f"{one_line(str(error)).rstrip('.')}. Penstock tries again in {span(pause_s)}."
                    err.print(f"[yellow]Note:[/yellow] {note}", soft_wrap=True)
                if pause_s is None:
                    raise typer.Exit(1 if outcomes["failed"] + outcomes["left"] else 0)
                time.sleep(pause_s)


def _turn(
    server: "Paperless",
    names: Sequence[str],
    parts: "frozenset[Part]",
    options: "Options",
    records: "Records",
    limit: int | None,
    *,
    quiet: bool,
    yes: bool,
) -> Counter[str]:
    """Take the documents that have the tag at this moment, and report their outcomes. Starts a stack only for work.
    `quiet`: say nothing without documents. `yes`: believe that most documents under way lost their tag."""
    from pipeline.interfaces.cli.connect.rules import Tags
    from pipeline.interfaces.cli.connect.run import Run
    from pipeline.interfaces.cli.progress import Progress
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import using_stack

    waiting, rows = _tagged(server, names[0], limit)
    if limit is None and waiting is not None:
        why = drop_lost(server, records, {row.id for row in rows}, accept_missing=yes)
        if why and not quiet:
            err.print(f"[yellow]Note:[/yellow] {why} --yes drops it.", soft_wrap=True)
    if waiting is None or not rows:
        if not quiet:
            err.print(_NONE if waiting else f"Paperless has no tag {one_line(names[0])}: create it.", soft_wrap=True)
        return Counter()
    done = server.tag(names[1], create=True) if names[1] else None
    failed = server.tag(names[2], create=True)
    assert failed is not None
    interrupted = "Interrupted. Nothing is lost: run the same command again to continue."
    with ExitStack() as held:
        with err.status("Starting …"):
            stack = held.enter_context(using_stack(get_settings()))
        progress = held.enter_context(Progress(stack, interrupted=interrupted, patience_s=0))
        run = Run(server, records, Tags(waiting, done, failed), parts, options, progress)
        run.over(rows)
    numbers = ", ".join(f"{number:,} {outcome}" for outcome, number in run.outcomes.items())
    err.print(f"{count(run.outcomes.total(), 'document')}: {numbers}.", soft_wrap=True)
    return run.outcomes


def drop_lost(server: "Paperless", records: "Records", tagged: set[int], *, accept_missing: bool) -> str:
    """Remove the records under way of documents that are not `tagged`: the connector wrote back just before a kill, or
    a user removed the tag. If the loss is doubtful (`engine.losses`), keep the records of documents that paperless does
    not show at all, and return the reason, unless `accept_missing`."""
    known = records.under_way()
    missing, why = known - tagged, ""
    if not accept_missing and losses.is_doubtful(len(known), len(missing)):
        gone = {document_id for document_id in missing if server.document(document_id) is None}
        if why := losses.doubt(len(known), len(gone), "documents under way", "their work is kept"):
            missing -= gone
    for document_id in missing:
        records.remove(document_id)
    return why


def _tagged(server: "Paperless", tag: str, limit: int | None) -> "tuple[int | None, list[PaperlessDocument]]":
    """Return the tag's id and its documents."""
    with err.status("Looking for documents …"):
        found = server.tag(tag)
        return found, server.tagged(found, limit) if found is not None else []


def _token(file: Path | None) -> str:
    """Return the API token, from a file, the environment or the terminal. Child processes do not inherit it."""
    token = os.environ.pop(TOKEN, "")
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}", code="usage") from error
    elif not token and sys.stdin.isatty():
        token = typer.prompt("API token of paperless (My Profile)", hide_input=True, err=True)
    token = token.strip()
    if not token:
        raise UserError(f"a token is needed: --token-file FILE, {TOKEN}, or a terminal to ask at", code="usage")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError("not a token of paperless: it has invalid characters", code="usage")
    return token
