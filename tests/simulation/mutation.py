"""A mutation: takes a safeguard away, which the simulation must notice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.world import Faults


@dataclass(frozen=True)
class Mutation:
    """A safeguard to remove. `scripts`: texts of scripts and their replacements; `names`: dotted names and theirs."""

    name: str
    without: str
    scripts: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)
    faults: Faults | None = None
    """Faults that soon expose the mutation, for tests. None: the usual ones do."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Shape` that the fleet needs to expose the mutation."""
    rare: bool = False
    """Always use these `faults`, because the usual ones expose the mutation only once in some thousand seeds."""
