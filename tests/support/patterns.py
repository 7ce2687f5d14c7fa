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
    """A pattern, how it is used (`match`, `fullmatch`, or `search` for all that look everywhere), and where.

    `pattern` is None where it is put together at run time; `source` is then what puts it together."""

    place: str
    source: str
    pattern: "re.Pattern[Any] | None"
    methods: frozenset[str]
    variable: str = ""

    @property
    def name(self) -> str:
        """What to call it in a list of exceptions: the file, and the pattern's name or what puts it together."""
        return f"{self.place.partition(':')[0]} {self.variable or self.source}"


def all_uses() -> list[Use]:
    """All patterns, in the order of files."""
    return [use for path in _sources() for use in _uses(path)]


@cache
def _sources() -> tuple[Path, ...]:
    found = [path for folder in ("pipeline", "tasks") for path in sorted((ROOT / folder).rglob("*.py"))]
    return (*found, ROOT / "celeryconfig.py", ROOT / "penstock_entry.py")


@cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree."""
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
        methods = frozenset(one if one in {"match", "fullmatch"} else "search" for one in called)
        yield Use(place, source, _compiled(node, names), methods, variable)


def _is_of_re(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


def _compiled(call: ast.Call, names: dict[str, Any]) -> "re.Pattern[Any] | None":
    """The pattern, if it does not depend on what is known at run time alone."""
    flags = [
        *(one for one in call.args[1:] if ast.unparse(one).startswith("re.")),
        *(one.value for one in call.keywords if one.arg == "flags"),
    ]
    try:
        given = [eval(compile(ast.Expression(one), "", "eval"), dict(names)) for one in (call.args[0], *flags)]
    except NameError:
        return None
    return re.compile(*given)


def _methods_of(name: str, path: Path) -> set[str]:
    """What is called on a pattern of this name: in its module and, if it is public, in all others."""
    searched = (
        [path] if name.startswith("_") else [path, *(one for one in _sources() if _imports(one, name, _module(path)))]
    )
    called = [attribute for one in searched for attribute in _names(one)[name].attributes]
    read = sum(_names(one)[name].reads for one in searched)
    # Passed on, it may be used in any way.
    return ({*called} & _METHODS) | (set() if called and read == len(called) else {"search"})


@dataclass
class _Name:
    """What a file does with a name: how often it reads it, and the attributes that it takes from it."""

    reads: int = 0
    attributes: list[str] = field(default_factory=list)


@cache
def _names(path: Path) -> Mapping[str, _Name]:
    found: defaultdict[str, _Name] = defaultdict(_Name)
    for node in _nodes(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id].reads += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found[node.value.id].attributes.append(node.attr)
    return found


def _imports(path: Path, name: str, module: str) -> bool:
    if name not in _text(path):
        return False
    imports = (node for node in _nodes(path) if isinstance(node, ast.ImportFrom) and node.module == module)
    return any(alias.name == name for node in imports for alias in node.names)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
