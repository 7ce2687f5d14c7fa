"""The public Python API: the names in `__all__` of each module of `tasks`, with every argument and every field.

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
    """These modules' exports as lines. Types look the same in every version of Python."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = {name: import_module(f"tasks.{name}") for name in modules}
        # Functions take a context. The snapshot leaves out its fields.
        every = [Context, *(getattr(module, name) for module in self._modules.values() for name in module.__all__)]
        self._exported = {id(exported) for exported in every if isinstance(exported, type)}

    def lines(self) -> Iterator[str]:
        for name, module in self._modules.items():
            for exported in module.__all__:
                value = getattr(module, exported)
                described = self._class if isinstance(value, type) else self._function
                yield from (f"tasks.{name} {line}" for line in described(exported, value))

    def _function(self, name: str, function: Callable[..., Any], above: tuple[type, ...] = ()) -> Iterator[str]:
        parameters = inspect.signature(function).parameters
        function = inspect.unwrap(function)
        hints = typing.get_type_hints(function)
        hints = {argument: hint for argument, hint in hints.items() if argument in {*parameters, "return"}}
        shown, kind = list[str](), None
        for parameter in parameters.values():
            if parameter.name in {"self", "cls"}:
                continue
            if parameter.kind is parameter.KEYWORD_ONLY and kind not in {
                parameter.KEYWORD_ONLY,
                parameter.VAR_POSITIONAL,
            }:
                shown.append("*")
            kind, hint = parameter.kind, hints.get(parameter.name, Any)
            shown.append(f"{_STARS[kind]}{parameter.name}: {self._type(hint)}{_default(parameter.default)}")
        yield f"{name}({', '.join(shown)}) -> {self._type(hints.get('return', Any))}"
        for argument, hint in hints.items():
            yield from self._hidden(f"{name}()" if argument == "return" else f"{name}({argument})", hint, above)

    def _class(self, name: str, cls: type) -> Iterator[str]:
        bases = [base.__name__ for base in cls.__mro__[1:] if id(base) in self._exported or issubclass(base, Exception)]
        yield f"{name}: {' '.join(['class', *sorted(set(bases))])}"
        yield from self._members(name, cls, ())

    def _members(self, name: str, cls: type, above: tuple[type, ...]) -> Iterator[str]:
        """Yield the class's public fields, properties and methods."""
        if issubclass(cls, enum.Enum):
            yield from (f"{name}.{member.name} = {member.value!r}" for member in cls)
        above, fields, hints = (*above, cls), _fields(cls), typing.get_type_hints(cls)
        for key, default in fields.items():
            if not key.startswith("_"):
                yield f"{name}.{key}: {self._type(hints[key])}{default}"
                yield from self._hidden(f"{name}.{key}", hints[key], above)
        for key in set(dir(cls)) - fields.keys():
            owner = next((base for base in cls.__mro__ if key in vars(base)), object)
            written = key == "__init__" and not dataclasses.is_dataclass(cls)
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
        """Yield the fields of classes in this type that are not exported."""
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
            return " | ".join(sorted({self._type(part) for part in parts}, key=lambda text: (text == "None", text)))
        inner = ", ".join(map(self._type, hint if isinstance(hint, list) else parts))
        if isinstance(hint, list):  # the arguments of a Callable
            return f"[{inner}]"
        if self._is_hidden(hint):
            name = "object"
        else:
            name = _PLAIN.get(id(hint)) or str(getattr(origin or hint, "__name__", origin or hint))
        return f"{name}[{inner}]" if parts else name


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith(("pipeline.", "tasks."))


def _fields(cls: Any) -> dict[str, str]:
    """Return the default of each field, as `_default` writes it."""
    if issubclass(cls, enum.Enum):
        return {}
    if dataclasses.is_dataclass(cls):
        return {
            field.name: _default(field.default_factory() if callable(field.default_factory) else field.default)
            for field in dataclasses.fields(cls)
        }
    if typing.is_typeddict(cls):
        return {key: "" if key in cls.__required_keys__ else " optional" for key in typing.get_type_hints(cls)}
    return dict.fromkeys(inspect.get_annotations(cls), "")


def _default(value: Any) -> str:
    """Return the default as in a signature, or `…` if it has no short form that is the same everywhere."""
    if any(value is missing for missing in _NOT_GIVEN):
        return ""
    if isinstance(value, enum.Enum):
        return f" = {type(value).__name__}.{value.name}"
    plain = isinstance(value, bool | int | float | str | tuple | list | dict | frozenset | None)
    return f" = {value!r}" if plain else " = …"
