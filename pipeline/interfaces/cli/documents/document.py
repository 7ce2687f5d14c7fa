"""What the commands for one document share: how it is named, and what is said once it was acted on."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Format, ready_context, tell_if_nothing_runs
from pipeline.interfaces.cli.output import err, one_line, state

if TYPE_CHECKING:
    from tasks.documents import Document

Id = Annotated[str, typer.Argument(metavar="ID", help="The document's id, or the beginning of it.")]
AsFormat = Annotated[
    Format, typer.Option("--format", help="md: Markdown; json: blocks with their boxes; docling: a DoclingDocument.")
]


def resolved(prefix: str) -> str:
    """The id that begins with this. Raises `UserError` if there is none, or are several."""
    from pipeline.flows.documents.queries import resolve

    return resolve(ready_context(), prefix)


def tell(document: "Document", done: str) -> None:
    """Say what was done, the state since then, and how to go on if nothing runs."""
    name = one_line(document.filename)
    err.print(f"{document.id} {name}: {done}. Now {state(document.status.name)}", soft_wrap=True)
    if not document.settled:
        tell_if_nothing_runs()
