"""The public Python API: what `__all__` of each module of `tasks` names, with every argument and every field.

Classes that are not exported have no name here: their fields stand where they are used.
"""

import dataclasses
import enum
import inspect
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

from pipeline.flows import FLOWS
from pipeline.storage.context import Context

MODULES = (*FLOWS, "calls", "events", "queues")
_NOT_GIVEN = (inspect.Parameter.empty, dataclasses.MISSING)
_STARS = defaultdict[Any, str](str, {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"})
_PLAIN = {id(None): "None", id(type(None)): "None", id(Ellipsis): "..."}


class Signatures:
    """These modules' exports as lines. Types are written the same by every Python."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = {name: import_module(f"tasks.{name}") for name in modules}
        # Functions take a whole context: the snapshot leaves its parts out.
        every = [Context, *(getattr(module, name) for module in self._modules.values() for name in module.__all__)]
        self._exported = {id(one) for one in every if isinstance(one, type)}

    def lines(self) -> Iterator[str]:
        for name, module in self._modules.items():
            for exported in module.__all__:
                one = getattr(module, exported)
                described = self._class if isinstance(one, type) else self._function
                yield from (f"tasks.{name} {line}" for line in described(exported, one))

    def _function(self, name: str, function: Callable[..., Any], above: tuple[type, ...] = ()) -> Iterator[str]:
        parameters = inspect.signature(function).parameters
        function = inspect.unwrap(function)
        hints = typing.get_type_hints(function)
        hints = {argument: hint for argument, hint in hints.items() if argument in {*parameters, "return"}}
        shown, kind = list[str](), None
        for one in parameters.values():
            if one.name in {"self", "cls"}:
                continue
            if one.kind is one.KEYWORD_ONLY and kind not in {one.KEYWORD_ONLY, one.VAR_POSITIONAL}:
                shown.append("*")
            kind = one.kind
            shown.append(f"{_STARS[kind]}{one.name}: {self._type(hints.get(one.name, Any))}{_default(one.default)}")
        yield f"{name}({', '.join(shown)}) -> {self._type(hints.get('return', Any))}"
        for argument, hint in hints.items():
            yield from self._hidden(f"{name}()" if argument == "return" else f"{name}({argument})", hint, above)

    def _class(self, name: str, one: type) -> Iterator[str]:
        bases = [base.__name__ for base in one.__mro__[1:] if id(base) in self._exported or issubclass(base, Exception)]
        yield f"{name}: {' '.join(['class', *sorted(set(bases))])}"
        yield from self._members(name, one, ())

    def _members(self, name: str, one: type, above: tuple[type, ...]) -> Iterator[str]:
        """Its public fields, properties and methods."""
        if issubclass(one, enum.Enum):
            yield from (f"{name}.{member.name} = {member.value!r}" for member in one)
        above, fields, hints = (*above, one), _fields(one), typing.get_type_hints(one)
        for key, default in fields.items():
            if not key.startswith("_"):
                yield f"{name}.{key}: {self._type(hints[key])}{default}"
                yield from self._hidden(f"{name}.{key}", hints[key], above)
        for key in set(dir(one)) - fields.keys():
            owner = next((base for base in one.__mro__ if key in vars(base)), object)
            written = key == "__init__" and not dataclasses.is_dataclass(one)
            if _is_ours(owner) and (written or not key.startswith("_")):
                yield from self._member(f"{name}.{key}".removesuffix(".__init__"), vars(owner)[key], above)

    def _member(self, name: str, member: Any, above: tuple[type, ...]) -> Iterator[str]:
        member = getattr(member, "wrapped", member)  # of pydantic's `computed_field`
        if isinstance(member, property | cached_property):
            read: Any = member.fget if isinstance(member, property) else member.func
            hint = typing.get_type_hints(read).get("return", Any)
            yield f"{name} -> {self._type(hint)}"
            yield from self._hidden(name, hint, above)
        elif inspect.isfunction(function := getattr(member, "__func__", member)):
            yield from self._function(name, function, above)

    def _hidden(self, name: str, hint: Any, above: tuple[type, ...]) -> Iterator[str]:
        """The fields of classes in this type that are not exported."""
        for part in typing.get_args(hint):
            yield from self._hidden(name, part, above)
        if self._is_hidden(hint) and hint not in above:
            yield from self._members(name, hint, above)

    def _is_hidden(self, hint: Any) -> bool:
        if not isinstance(hint, type) or id(hint) in self._exported or not _is_ours(hint):
            return False
        return dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or issubclass(hint, enum.Enum)

    def _type(self, hint: Any) -> str:
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return self._type(parts[0])
        if origin is typing.Literal:
            return " | ".join(sorted(map(repr, parts)))
        if origin in {typing.Union, types.UnionType}:
            return " | ".join(sorted({self._type(one) for one in parts}, key=lambda text: (text == "None", text)))
        inner = ", ".join(map(self._type, hint if isinstance(hint, list) else parts))
        if isinstance(hint, list):  # the arguments of a Callable
            return f"[{inner}]"
        if self._is_hidden(hint):
            name = "object"
        else:
            name = _PLAIN.get(id(hint)) or str(getattr(origin or hint, "__name__", origin or hint))
        return f"{name}[{inner}]" if parts else name


def _is_ours(one: type) -> bool:
    return one.__module__.startswith(("pipeline.", "tasks."))


def _fields(one: Any) -> dict[str, str]:
    """The default of each field, as `_default` writes it."""
    if issubclass(one, enum.Enum):
        return {}
    if dataclasses.is_dataclass(one):
        return {
            field.name: _default(field.default_factory() if callable(field.default_factory) else field.default)
            for field in dataclasses.fields(one)
        }
    if typing.is_typeddict(one):
        return {key: "" if key in one.__required_keys__ else " optional" for key in typing.get_type_hints(one)}
    return dict.fromkeys(inspect.get_annotations(one), "")


def _default(value: Any) -> str:
    """As written in a signature. What has no short form that is the same everywhere is `…`."""
    if any(value is one for one in _NOT_GIVEN):
        return ""
    if isinstance(value, enum.Enum):
        return f" = {type(value).__name__}.{value.name}"
    plain = isinstance(value, bool | int | float | str | tuple | list | dict | frozenset | None)
    return f" = {value!r}" if plain else " = …"
