"""`penstock documents …`: show documents, and act on them."""

from collections.abc import Callable

import typer

from pipeline.interfaces.cli.command import help_of
from pipeline.interfaces.cli.documents import actions, catalog, detail, search, text

app = typer.Typer(rich_markup_mode="rich", invoke_without_command=True)
app.callback(help=help_of(catalog.documents))(catalog.documents)
_COMMANDS: dict[str, Callable[..., None]] = {
    "list": catalog.list_,
    "search": search.search,
    "show": detail.show,
    "pages": detail.pages,
    "attempts": detail.attempts,
    "text": text.text,
    "cancel": actions.cancel,
    "pause": actions.pause,
    "resume": actions.resume,
    "retry": actions.retry,
    "retry-page": actions.retry_page,
    "escalate": actions.escalate,
    "promote": actions.promote,
    "remerge": actions.remerge,
    "delete": actions.delete,
    "export": text.export,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, help=help_of(_command))(_command)
