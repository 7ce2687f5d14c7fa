"""`penstock documents text` and `export`: results, on standard output and as files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import AsFormat, NoMarkers
from pipeline.interfaces.cli.convert import options as given
from pipeline.interfaces.cli.documents.document import Id, resolved
from pipeline.interfaces.cli.output import err, one_line, print_content, state
from pipeline.reading.export.formats import Format, Shape

if TYPE_CHECKING:
    from pipeline.operations.documents import Document


def text(document_id: Id, format_: AsFormat = Format.MD, no_page_markers: NoMarkers = False) -> None:
    """Print a document's result in one of the formats."""
    from pipeline.operations.documents import status

    document = status(resolved(document_id))
    content = document.result(format_, markers=not no_page_markers)
    _warn_if_outdated(document)
    print_content(content, binary=format_ is Format.PDF)


def _warn_if_outdated(document: "Document") -> None:
    if document.outdated:
        now = state(document.status.name)
        err.print(f"[yellow]Note:[/yellow] this is the result from before the last retry, which is {now}.")


def export(
    document_id: Id,
    output: Annotated[str, typer.Argument(help="The same as -o.")] = "",
    to: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="The file to write, a folder for NAME.md, or - for standard output. Default: NAME.md in this folder.",
        ),
    ] = "",
    format_: AsFormat = Format.MD,
    split: given.Split = "",
    tables: given.Tables = "",
    no_page_markers: NoMarkers = False,
    as_zip: Annotated[
        bool, typer.Option("--zip", help="A ZIP archive of the Markdown, its pictures, the blocks and the manifest.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a document's result to a file, with its manifest beside it.

    [bold]penstock documents export 3f2a -o texts/[/bold]
    """
    from pipeline.engine.errors import UserError
    from pipeline.interfaces.cli.convert.targets import STDOUT
    from pipeline.interfaces.cli.results import in_the_way, manifest_in_the_way, write
    from pipeline.operations.documents import status
    from pipeline.reading.files.inputs import result_name
    from pipeline.reading.files.user_file import storage_error

    if output and to:
        raise UserError("give either OUTPUT or -o", code="usage")
    destination = to or output or "."
    shape = given.shape_of(split, tables, markers=not no_page_markers)
    if as_zip:
        _export_archive(document_id, Path(destination), shape, force=force)
        return
    if destination == STDOUT:
        text(document_id, format_, no_page_markers)
        return
    document, target = status(resolved(document_id)), Path(destination)
    if target.is_dir() or destination.endswith(os.sep):
        target /= result_name(document.filename, format_.suffix)
    if not force:
        why = f"{target} exists and is kept" if target.exists() else manifest_in_the_way(target)
        if why := why or in_the_way(document, target, format_, shape):
            raise UserError(f"{why}: use --force to replace it", code="exists")
    try:
        write(document, target, format_, shape=shape)
    except OSError as error:
        raise storage_error(error, target) from error
    _warn_if_outdated(document)
    err.print(f"{document.id} {one_line(document.filename)} → [bold]{one_line(str(target))}[/bold]", soft_wrap=True)


def _export_archive(document_id: str, target: Path, shape: Shape, *, force: bool) -> None:
    from pipeline.engine.errors import UserError
    from pipeline.engine.privacy import users_mode
    from pipeline.operations.documents import status
    from pipeline.reading.files.source import safe_stem
    from pipeline.reading.files.user_file import storage_error

    document = status(resolved(document_id))
    if target.is_dir():
        target /= f"{safe_stem(document.filename)}.zip"
    if target.exists() and not force:
        raise UserError(f"{target} exists and is kept: use --force to replace it", code="exists")
    pieces = document.archive(split=shape.split, tables=shape.tables)
    temporary = target.with_name(f".{target.name[:200]}.{document.id}")
    try:
        with temporary.open("wb") as file:
            file.writelines(pieces)
        temporary.chmod(users_mode(0o666))
        temporary.replace(target)
    except OSError as error:
        raise storage_error(error, target) from error
    finally:
        temporary.unlink(missing_ok=True)
    _warn_if_outdated(document)
    err.print(f"{document.id} {one_line(document.filename)} → [bold]{one_line(str(target))}[/bold]", soft_wrap=True)
