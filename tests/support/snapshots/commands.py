"""The commands with their parameters, and their help as the terminal shows it, without colour."""

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
    """Yield every command by name: its help, then arguments in their order, then options."""
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
    own = [parameter for parameter in command.params if parameter.name in hints]  # the others are typer's
    arguments = [parameter for parameter in own if parameter.param_type_name == "argument"]
    options = sorted(
        (parameter for parameter in own if parameter not in arguments), key=lambda parameter: sorted(parameter.opts)
    )
    for parameter in (*arguments, *options):
        yield f"{path} {_parameter(parameter, hints[parameter.name])}"
    for name in sorted(getattr(command, "commands", {})):
        _, inner, _ = command.resolve_command(context, [name])
        yield from _lines(inner, f"{path} {name}", context)


def _parameter(parameter: Any, hint: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = (
        [parameter.metavar or parameter.name.upper()]
        if is_argument
        else [*sorted(parameter.opts), *sorted(parameter.secondary_opts)]
    )
    facts = ["/".join(names), _type(hint)]
    facts += [parameter.metavar] if parameter.metavar and not is_argument else []
    facts += [f"{key}={value}" for key in ("min", "max") if (value := getattr(parameter, key)) is not None]
    facts += [f"${parameter.envvar}"] if parameter.envvar else []
    facts += ["required"] if parameter.required else [f"= {_default(parameter.default)}"]
    facts += [word for word in ("hidden", "multiple") if getattr(parameter, word)]
    return f"{' '.join(facts)}: {' '.join(_plain(parameter.help).split())}".rstrip(": ")


def _type(hint: Any) -> str:
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(part.value) for part in hint)
    if parts and typing.get_origin(hint) is list:
        return f"{_type(parts[0])}..."
    if parts:
        return "|".join(map(_type, parts))
    return str(getattr(hint, "__name__", hint))


def _default(value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    return repr(value) if isinstance(value, str | int | float | list | tuple | None) else "…"


def _plain(text: str | None) -> str:
    """Return the text without markup. As on the terminal, a single line end within a paragraph is a space."""
    return re.sub(r"\n{3,}", "\n\n", Text.from_markup(text or "").plain)
