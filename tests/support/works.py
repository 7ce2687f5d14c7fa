"""Units of every kind of work, made as rows: for tests of what holds for all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.engine.work import Work
from pipeline.flows import flows
from pipeline.storage.context import Context


@dataclass(frozen=True)
class Made:
    """A scope with units that can be claimed now, and the columns that a unit needs to be done."""

    scope: Any
    count: int
    done: dict[str, Any] = field(default_factory=dict)


Factory = Callable[[Context, int], Made]
"""Makes a scope with up to so many units: those of some kinds are scopes of their own."""
FACTORIES: dict[str, Factory] = {}
"""By flow and kind: `documents.page`."""


def factory(name: str) -> Callable[[Factory], Factory]:
    """Register how units of a kind are made."""

    def register(make: Factory) -> Factory:
        FACTORIES[name] = make
        return make

    return register


def works() -> dict[str, Work]:
    """Every kind of work of every flow, by flow and kind."""
    return {f"{flow.name}.{work.name}": work for flow in flows() for work in flow.works}
