"""A safeguard that is taken away, to see whether anybody notices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.world import Faults


@dataclass(frozen=True)
class Mutation:
    """What is taken away. `scripts`: texts to be replaced; `names`: dotted names, and what stands there instead."""

    name: str
    without: str
    scripts: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)
    faults: Faults | None = None
    """Those that bring it to light soon, for tests; None: the usual ones do."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """How the fleet must be, where only such a one brings it to light: fields of `Shape`."""
    rare: bool = False
    """The usual faults bring it to light once in some thousand seeds: always use its own."""
