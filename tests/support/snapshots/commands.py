"""The commands: what each takes, and its help as the terminal shows it, without colour."""

import re
import textwrap
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

from rich.text import Text
from typer.main import get_command

from pipeline.interfaces.cli.main import app

_WIDTH = 100


def lines() -> Iterator[str]:
    """Every command in the order of their names; its help first, then arguments in their order, then options."""
    yield from _lines(get_command(app), "penstock", None)


def _lines(command: Any, path: str, parent: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=path, parent=parent, **command.context_settings)
    yield f"{path}{' hidden' if command.hidden else ''}"
    for line in _plain(command.help).splitlines():
        yield from (f"{path} | {part}" for part in textwrap.wrap(line, _WIDTH))
    if context.help_option_names:
        yield f"{path} {' '.join(sorted(context.help_option_names))}: help"
    if context.ignore_unknown_options:
        yield f"{path} takes further options"
    hints = typing.get_type_hints(command.callback) if command.callback else {}
    own = [one for one in command.params if one.name in hints]  # the others are typer's
    arguments = [one for one in own if one.param_type_name == "argument"]
    options = sorted((one for one in own if one not in arguments), key=lambda one: sorted(one.opts))
    for one in (*arguments, *options):
        yield f"{path} {_parameter(one, hints[one.name])}"
    for name in sorted(getattr(command, "commands", {})):
        _, inner, _ = command.resolve_command(context, [name])
        yield from _lines(inner, f"{path} {name}", context)


def _parameter(one: Any, hint: Any) -> str:
    is_argument = one.param_type_name == "argument"
    names = [one.metavar or one.name.upper()] if is_argument else [*sorted(one.opts), *sorted(one.secondary_opts)]
    facts = ["/".join(names), _type(hint)]
    facts += [one.metavar] if one.metavar and not is_argument else []
    facts += [f"{key}={value}" for key in ("min", "max") if (value := getattr(one, key)) is not None]
    facts += [f"${one.envvar}"] if one.envvar else []
    facts += ["required"] if one.required else [f"= {_default(one.default)}"]
    facts += [word for word in ("hidden", "multiple") if getattr(one, word)]
    return f"{' '.join(facts)}: {' '.join(_plain(one.help).split())}".rstrip(": ")


def _type(hint: Any) -> str:
    parts = [one for one in typing.get_args(hint) if one is not type(None)]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(one.value) for one in hint)
    if parts and typing.get_origin(hint) is list:
        return f"{_type(parts[0])}..."
    if parts:
        return "|".join(map(_type, parts))
    return str(getattr(hint, "__name__", hint))


def _default(value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    return repr(value) if isinstance(value, str | int | float | list | tuple | None) else "…"


def _plain(text: str | None) -> str:
    """The text without markup. Paragraphs are those of the terminal: single line ends in them are spaces."""
    return re.sub(r"\n{3,}", "\n\n", Text.from_markup(text or "").plain)
