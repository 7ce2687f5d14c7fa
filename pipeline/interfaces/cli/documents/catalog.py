"""`penstock documents` and `penstock documents list`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.views import money
from pipeline.interfaces.cli.command import Json, Limit, ready
from pipeline.interfaces.cli.output import one_line, print_list, state
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from pipeline.flows.documents.states import DocumentStatus
    from pipeline.operations.documents import Document

States = Annotated[
    list[str] | None,
    typer.Option("--status", "--state", help="Only documents in this state, such as FAILED. Repeatable."),
]
Name = Annotated[str, typer.Option(help="Only documents with this text in their file's name, in any case.")]


def documents(
    command: typer.Context, status: States = None, name: Name = "", limit: Limit = 50, as_json: Json = False
) -> None:
    """List and show documents, and search in them; cancel, pause, resume, retry, merge again, delete.

    Without a command: list documents, newest first.
    """
    if command.invoked_subcommand is None:
        list_(status, name, limit, as_json=as_json)


def list_(status: States = None, name: Name = "", limit: Limit = 50, as_json: Json = False) -> None:
    """List documents, newest first.

    [bold]penstock documents list --status failed --name invoice[/bold]
    """
    from pipeline.flows.documents.catalog import Filter
    from pipeline.operations.documents import list_documents

    ready()
    documents = list_documents(which=Filter(frozenset(map(_state, status or ())), name), limit=limit)
    # Leave out empty columns: the room goes to columns that distinguish files of the same name.
    ranges, folders = any(each.page_range for each in documents), any(each.source_path for each in documents)
    costs = any(each.cost for each in documents)

    def row(document: "Document") -> list[str]:
        pages = f"{document.completed_count:,}/{document.pages:,}" if document.pages else ""
        pages += f", {document.doubtful_count:,} doubtful" if document.doubtful_count else ""
        return [
            document.id,
            one_line(document.filename),
            state(document.status.name),
            pages,
            *([one_line(document.page_range, 30)] if ranges else []),
            *([one_line(_folder(document))] if folders else []),
            f"{document.progress} %",
            one_line(document.provider),
            *([money(document.cost) if document.cost else ""] if costs else []),
            ago(document.updated_at),
        ]

    print_list(
        documents,
        (
            "ID",
            "FILE~",
            "STATE",
            "DONE>",
            *(["OF PAGES~?"] if ranges else []),
            *(["FOLDER~?"] if folders else []),
            "PROGRESS>?",
            "PROVIDER?",
            *(["COST>?"] if costs else []),
            "CHANGED",
        ),
        row,
        as_json=as_json,
        none="No document matches." if status or name else "No documents. `penstock convert FILE` makes one.",
    )


def _state(name: str) -> "DocumentStatus":
    from pipeline.engine.errors import UserError
    from pipeline.flows.documents.states import DocumentStatus

    if name.upper() not in DocumentStatus.__members__:
        known = ", ".join(DocumentStatus.__members__)
        raise UserError(f"unknown state '{name}'; choose from {known}", code="usage")
    return DocumentStatus[name.upper()]


def _folder(document: "Document") -> str:
    """The folder of a document's file, with `~` for the home folder; empty for uploads."""
    if not document.source_path:
        return ""
    folder, home = Path(document.source_path).parent, Path.home()
    return str(Path("~", folder.relative_to(home)) if folder.is_relative_to(home) else folder)
