"""The pages of docs/reference that the code makes: `python -m tests.support.reference` writes them."""

from collections.abc import Callable, Iterator
from typing import Any

from rich.text import Text
from typer.main import get_command

from pipeline.engine import announced
from pipeline.flows import FLOWS, flows
from pipeline.interfaces.cli.main import app
from tests.support import endpoints

FOLDER = endpoints.PAGE.parent
_CLI = """# Commands

`make reference` writes this page from the program. `penstock COMMAND --help` prints the same on a terminal.

## Exit codes

| Code | Meaning |
|---|---|
| 0 | The command did what it says. |
| 1 | It failed; standard error says why. |
| 2 | Wrong usage. |
| 3 | A result lacks pages, or an item failed. |
| 130 | Interrupted. |
"""
_EVENTS = """# Events

`make reference` writes this page from the tables whose rows send events. A type is the kind of row and its new state;
`KIND.*` stands for all types of a kind. [Events and webhooks](../how-to/webhooks.md) describes how to receive them.
"""


def cli() -> str:
    """Every command with its arguments and options."""
    return "\n".join([_CLI, *_commands(get_command(app), "penstock", None)])


def _commands(command: Any, path: str, parent: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=path, parent=parent, **command.context_settings)
    if command.hidden:
        return
    if parent:
        yield from (f"## `{path}`", "", _paragraphs(command.help), "")
        if rows := list(_parameters(command)):
            yield from ("| Argument or option | Meaning |", "|---|---|", *rows, "")
    for name in sorted(getattr(command, "commands", {})):
        _, inner, _ = command.resolve_command(context, [name])
        yield from _commands(inner, f"{path} {name}", context)


def _parameters(command: Any) -> Iterator[str]:
    for one in command.params:
        is_argument = one.param_type_name == "argument"
        if not getattr(one, "hidden", False):
            names = [one.metavar or one.name.upper()] if is_argument else [*one.opts, *one.secondary_opts]
            shown = ", ".join(f"`{name}`" for name in names)
            meaning = _escaped(_line(one.help)).replace("|", "\\|")
            yield f"| {shown} | {meaning} |"


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(_escaped(_line(part)) for part in (text or "").split("\n\n"))


def _line(text: str | None) -> str:
    return " ".join(Text.from_markup(text or "").plain.split())


def _escaped(text: str) -> str:
    """The text with `<` and `*` outside code spans as HTML, so that Markdown shows them."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "&#42;") for part in parts[::2]]
    return "`".join(parts)


def events() -> str:
    """Every kind of row that sends events, with its types and the fields of its data."""
    flows()  # imports their tables
    lines = [_EVENTS]
    for kind, one in sorted(announced.KINDS.items()):
        if one.flow not in FLOWS:  # tests have tables of their own
            continue
        lines += [f"## `{kind}`", "", f"Flow: {one.flow}. Fields of `data`, beside `id` and `status`:", ""]
        lines += [f"- `{column}`" for column in one.columns] or ["- none"]
        lines += ["", "Types:", "", *(f"- `{name}`" for name in one.types), ""]
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {"rest.md": endpoints.page, "cli.md": cli, "events.md": events}


if __name__ == "__main__":
    for file, content in PAGES.items():
        (FOLDER / file).write_text(content(), encoding="utf-8")
