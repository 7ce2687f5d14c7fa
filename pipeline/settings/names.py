"""Find names that are not settings, in the environment and in the TOML file, and suggest the nearest setting."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel

PREFIX = "PENSTOCK_"
NOT_SETTINGS = frozenset(
    {"PENSTOCK_CONFIG", "PENSTOCK_NODE_TOKEN", "PENSTOCK_PAPERLESS_TOKEN", "PENSTOCK_CORPUS", "PENSTOCK_FAULTS_S"}
)
"""The file's path, tokens for one command each, and variables for tests and benchmarks."""
_OF_A_CLUSTER = re.compile(r"(?=\w+\Z)(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")
"""Variables that Kubernetes sets in every pod for a service called `penstock…`."""


class Speller:
    """Checks names against a model's fields, and against further `sections` that other code reads."""

    def __init__(self, model: type[BaseModel], sections: Sequence[str] = ()) -> None:
        self._model, self._sections = model, sections

    def in_environment(self, environment: Mapping[str, str], only: str = "") -> Iterator[str]:
        """Yield a sentence for each unknown variable; `only`: check only this section."""
        for variable, value in sorted(environment.items()):
            name = variable.upper()
            parts = name.removeprefix(PREFIX).lower().split("__")
            is_other = parts[0] in self._sections or (only and parts[0] != only)
            if not name.startswith(PREFIX) or is_other or name in NOT_SETTINGS or _is_of_a_cluster(name, value):
                continue
            if not _has(self._model, parts):
                yield f"{variable} is not a setting{self._nearest(name)}"
            else:
                yield from self._in_json(variable, parts, value)

    def in_file(self, table: Mapping[str, Any], file: str, only: str = "") -> Iterator[str]:
        """Yield a sentence for each unknown key of the file; `only`: check only this table."""
        for key, value in table.items():
            if key.lower() not in self._sections and (not only or key == only):
                for path in _unknown(self._model, {key: value}):
                    yield f"{'.'.join(path)} in {file} is not a setting{_did_you_mean(path[-1], self._beside(path))}"

    def _in_json(self, variable: str, parts: Sequence[str], value: str) -> Iterator[str]:
        """Check the keys of a variable whose value is a whole table."""
        try:
            table: Any = json.loads(value) if value.lstrip().startswith("{") else {}
        except ValueError:
            return  # the reader reports it
        for part in reversed(parts):
            table = {part: table}
        for path in _unknown(self._model, table):
            nearest = _did_you_mean(path[-1], self._beside(path))
            yield f"{variable}: {'.'.join(path[len(parts) :])} is not a setting{nearest}"

    def _nearest(self, name: str) -> str:
        parts = name.removeprefix(PREFIX).lower().split("__")
        for section in self._sections:
            if parts[0].startswith(f"{section}_"):
                parts = [section, parts[0].removeprefix(f"{section}_"), *parts[1:]]
                return f"; did you mean {PREFIX}{'__'.join(parts).upper()}?"
        named = parts[1] if parts[0] == "providers" and len(parts) > 2 else "name"
        known = [*_variables(self._model, "", named.upper()), *(f"{section.upper()}__" for section in self._sections)]
        near = get_close_matches(
            name.removeprefix(PREFIX), known, n=1, cutoff=0.6
        )  # the common prefix would distort the comparison
        rest = "__".join(parts[1:]).upper() if near and near[0].endswith("__") else ""
        return f"; did you mean {PREFIX}{near[0]}{rest}?" if near else ""

    def _beside(self, path: Sequence[str]) -> list[str]:
        """Return the names that are valid in place of the last one of this path."""
        model: Any = self._model
        for part in path[:-1]:
            model = _below(model, part)
        fields = list(model.model_fields) if _is_model(model) else []
        return fields if len(path) > 1 else [*fields, *self._sections]


def _is_of_a_cluster(name: str, value: str) -> bool:
    plain = name.removeprefix(PREFIX)
    is_port = plain.endswith("PORT") and not plain.endswith("SERVICE_PORT") and value.isdigit()
    return bool(_OF_A_CLUSTER.fullmatch(plain)) and "__" not in plain and not is_port


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _below(kind: Any, name: str) -> Any:
    """Return the type of the entry with this name in a value of `kind`; None if unknown."""
    if _is_model(kind):
        field = kind.model_fields.get(name)
        return field.annotation if field else None
    return get_args(kind)[1] if get_origin(kind) is dict else None


def _has(kind: Any, parts: Sequence[str]) -> bool:
    for part in parts:
        kind = _below(kind, part)
        if kind is None:
            return False
    return True


def _unknown(kind: Any, value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of unknown keys in a table for this type."""
    if not isinstance(value, Mapping) or not (_is_model(kind) or get_origin(kind) is dict):
        return  # the reader reports a value of the wrong type
    for key, below in value.items():
        inner = _below(kind, str(key))
        if inner is None:
            yield (*path, str(key))
        else:
            yield from _unknown(inner, below, (*path, str(key)))


def _variables(kind: Any, prefix: str, named: str) -> Iterator[str]:
    """Yield every variable; `named` replaces a name that the user chooses."""
    for name, field in kind.model_fields.items():
        variable, below = f"{prefix}{name.upper()}", field.annotation
        yield variable
        if get_origin(below) is dict:
            variable, below = f"{variable}__{named}", get_args(below)[1]
        if _is_model(below):
            yield from _variables(below, f"{variable}__", named)


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
