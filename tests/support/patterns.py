"""Every regular expression of the product, found in its source."""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_METHODS = frozenset({"match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split"})


class Use(NamedTuple):
    """A pattern, its methods (`match`, `fullmatch`, or `search` for all that look everywhere), and its place.

    `pattern` is None if the code builds it at run time; `source` is then the expression that builds it."""

    place: str
    source: str
    pattern: "re.Pattern[Any] | None"
    methods: frozenset[str]
    variable: str = ""

    @property
    def name(self) -> str:
        """The name in a list of exceptions: the file, and the pattern's name or the expression that builds it."""
        return f"{self.place.partition(':')[0]} {self.variable or self.source}"


def all_uses() -> list[Use]:
    """Return all patterns, in the order of files."""
    return [use for path in _sources() for use in _uses(path)]


@cache
def _sources() -> tuple[Path, ...]:
    paths = [path for folder in ("pipeline", "tasks") for path in sorted((ROOT / folder).rglob("*.py"))]
    return (*paths, ROOT / "celeryconfig.py", ROOT / "penstock_entry.py")


@cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(_text(path))))


def _uses(path: Path) -> Iterator[Use]:
    if "import re\n" not in _text(path):
        return
    names = vars(importlib.import_module(_module(path)))
    named = {
        id(node.value): node.targets[0].id
        for node in _nodes(path)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in _nodes(path):
        if not (isinstance(node, ast.Call) and _is_of_re(node.func) and node.args):
            continue
        function = node.func.attr  # type: ignore[attr-defined]
        if function not in _METHODS | {"compile"}:
            continue
        source = ast.unparse(node.args[0])
        place = f"{path.relative_to(ROOT)}:{node.lineno}"
        variable = named.get(id(node), "") if function == "compile" else ""
        called = {function} if function != "compile" else _methods_of(variable, path)
        methods = frozenset(name if name in {"match", "fullmatch"} else "search" for name in called)
        yield Use(place, source, _compiled(node, names), methods, variable)


def _is_of_re(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


def _compiled(call: ast.Call, names: dict[str, Any]) -> "re.Pattern[Any] | None":
    """Return the pattern, or None if it depends on values of the run time."""
    flags = [
        *(argument for argument in call.args[1:] if ast.unparse(argument).startswith("re.")),
        *(argument.value for argument in call.keywords if argument.arg == "flags"),
    ]
    try:
        values = [
            eval(compile(ast.Expression(argument), "", "eval"), dict(names)) for argument in (call.args[0], *flags)
        ]
    except NameError:
        return None
    return re.compile(*values)


def _methods_of(name: str, path: Path) -> set[str]:
    """Return the methods called on a pattern of this name: in its module and, if it is public, in all others."""
    searched = (
        [path]
        if name.startswith("_")
        else [path, *(source for source in _sources() if _imports(source, name, _module(path)))]
    )
    called = [attribute for source in searched for attribute in _names(source)[name].attributes]
    read = sum(_names(source)[name].reads for source in searched)
    # A pattern that is passed on may be used in any way.
    return ({*called} & _METHODS) | (set() if called and read == len(called) else {"search"})


@dataclass
class _Name:
    """A file's uses of a name: the number of its reads, and the attributes taken from it."""

    reads: int = 0
    attributes: list[str] = field(default_factory=list)


@cache
def _names(path: Path) -> Mapping[str, _Name]:
    names: defaultdict[str, _Name] = defaultdict(_Name)
    for node in _nodes(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names[node.id].reads += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names[node.value.id].attributes.append(node.attr)
    return names


def _imports(path: Path, name: str, module: str) -> bool:
    if name not in _text(path):
        return False
    imports = (node for node in _nodes(path) if isinstance(node, ast.ImportFrom) and node.module == module)
    return any(alias.name == name for node in imports for alias in node.names)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
