"""The generated pages of docs/reference: `python -m tests.support.reference` writes them."""

import ast
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

from pydantic import BaseModel, SecretStr
from rich.text import Text
from typer.main import get_command

from pipeline.engine import announced
from pipeline.flows import FLOWS, flows
from pipeline.interfaces.cli.main import app
from tests.support import endpoints
from tests.support.all_settings import described

FOLDER = endpoints.PAGE.parent
ROOT = FOLDER.parents[1]
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
    """Return the page of all commands with their arguments and options."""
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
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        if not getattr(parameter, "hidden", False):
            names = (
                [parameter.metavar or parameter.name.upper()]
                if is_argument
                else [*parameter.opts, *parameter.secondary_opts]
            )
            shown = ", ".join(f"`{name}`" for name in names)
            meaning = _escaped(_line(parameter.help)).replace("|", "\\|")
            yield f"| {shown} | {meaning} |"


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(_escaped(_line(part)) for part in (text or "").split("\n\n"))


def _line(text: str | None) -> str:
    return " ".join(Text.from_markup(text or "").plain.split())


def _escaped(text: str) -> str:
    """Return the text with `<` and `*` outside code spans as HTML, so that Markdown shows them."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "&#42;") for part in parts[::2]]
    return "`".join(parts)


def events() -> str:
    """Return the page of all kinds of rows that send events, with their types and the fields of their data."""
    flows()  # imports their tables
    lines = [_EVENTS]
    for kind, kind_facts in sorted(announced.KINDS.items()):
        if kind_facts.flow not in FLOWS:  # tests have tables of their own
            continue
        lines += [f"## `{kind}`", "", f"Flow: {kind_facts.flow}. Fields of `data`, beside `id` and `status`:", ""]
        lines += [f"- `{column}`" for column in kind_facts.columns] or ["- none"]
        lines += ["", "Types:", "", *(f"- `{name}`" for name in kind_facts.types), ""]
    return "\n".join(lines)


_SETTINGS = re.compile(r"(<!-- settings: (.+) -->\n)(?:\|.*\n)*")
_METRICS = re.compile(r"(<!-- metrics: (.+) -->\n)(?:\|.*\n)*")
_PAGE = re.compile(r"docs/([\w/-]+)\.md(#[\w-]+)?")
_COMPUTED = {
    "PENSTOCK_DATA_DIR": "the user's data folder",
    "PENSTOCK_DOCUMENTS__CONVERTER_COUNT": "the number of cores, at least 2",
}
"""The defaults that depend on the machine."""
_KINDS = {"Gauge": "gauge", "Counter": "counter", "Histogram": "histogram", "HistogramMetricFamily": "histogram"}


def settings() -> str:
    """The page with its tables of settings written anew: each has the settings whose names match its marker.

    Raises `ValueError` for a setting in no table, or in two.
    """
    rows = {variable: _row(variable, model, name) for variable, model, name in described()}
    placed: Counter[str] = Counter()

    def table(marker: re.Match[str]) -> str:
        names = [name for name in rows if any(fnmatch(name, pattern) for pattern in marker[2].split())]
        placed.update(names)
        return "\n".join(
            [f"{marker[1]}| setting | default | meaning |", "|---|---|---|", *(rows[n] for n in names), ""]
        )

    page = _SETTINGS.sub(table, (FOLDER / "settings.md").read_text(encoding="utf-8"))
    if misplaced := [name for name in rows if placed[name] != 1]:
        raise ValueError(f"docs/reference/settings.md needs one marker for each of {', '.join(misplaced)}")
    return page


def _row(variable: str, model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    default = _COMPUTED.get(variable) or _default(field.get_default(call_default_factory=True, validated_data={}))
    meaning = _linked(_docstrings(model)[name].split("\n\n")[0])
    return f"| `{variable}` | {default} | {meaning} |"


def _default(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return "empty" if value == "" else f"`{value if isinstance(value, str) else json.dumps(value)}`"


@cache
def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstring below each field of a model, also of the models that it extends."""
    texts: dict[str, str] = {}
    for owner in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        body = cast("ast.ClassDef", ast.parse(dedent(inspect.getsource(owner))).body[0]).body
        for field, after in pairwise(body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = inspect.cleandoc(text)
    return texts


def _linked(text: str) -> str:
    """One line of Markdown, in which `docs/how-to/api.md#limits` is a link from a page of this folder."""
    line = _PAGE.sub(
        lambda page: f"[{page[1].rpartition('/')[2]}](../{page[1]}.md{page[2] or ''})", " ".join(text.split())
    )
    return line.replace("|", "\\|")


def metrics() -> str:
    """The page with its tables of metrics written anew: each has the metrics of the file or folder of its marker."""

    def table(marker: re.Match[str]) -> str:
        place = ROOT / marker[2]
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        rows = sorted(row for file in files for row in _metrics(file))
        return "\n".join([f"{marker[1]}| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""])

    return _METRICS.sub(table, (FOLDER / "metrics.md").read_text(encoding="utf-8"))


def _metrics(file: Path) -> Iterator[str]:
    """A row for each metric that a function of this file creates, with the labels that it names."""
    functions = [n for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]
    for function in functions:
        lists = {
            ast.unparse(node.targets[0]): node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        }
        for call in ast.walk(function):
            match call:
                case ast.Call(
                    func=ast.Name(id=kind), args=[ast.Constant(value=str(name)), ast.Constant(value=text), *more]
                ):
                    arguments = [*more, *(word.value for word in call.keywords if word.arg == "labels")]
                    labels = ", ".join(label for of in arguments for label in _labels(of, lists))
                    full = f"{name}_total" if kind == "Counter" else name
                    yield f"| `{full}` | {_KINDS[kind]} | {labels} | {_linked(str(text))} |"


def _labels(value: ast.expr, lists: Mapping[str, ast.expr]) -> Iterator[str]:
    match value:
        case ast.List(elts=parts):
            for part in parts:
                yield from _labels(part, lists)
        case ast.Constant(value=text):
            yield str(text)
        case ast.Starred(value=ast.Name(id=name)) | ast.Name(id=name):
            yield from _labels(lists[name], lists)


PAGES: dict[str, Callable[[], str]] = {
    "rest.md": endpoints.page,
    "cli.md": cli,
    "events.md": events,
    "settings.md": settings,
    "metrics.md": metrics,
}


if __name__ == "__main__":
    for file, content in PAGES.items():
        (FOLDER / file).write_text(content(), encoding="utf-8")
