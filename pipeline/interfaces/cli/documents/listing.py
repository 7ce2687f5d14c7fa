"""`penstock documents list`."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.output import one_line, print_list, state
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from tasks.documents import Document


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
