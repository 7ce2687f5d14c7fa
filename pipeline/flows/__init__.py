"""What moves through Penstock: a package for each flow, strangers to one another, with the same rooms inside.

`FLOWS` is the one list of them. Each package has a `FLOW`, which says all that the rest of the house needs to know.
"""

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from pipeline.providers import gates

if TYPE_CHECKING:
    from pipeline.flows.flow import Flow

FLOWS = ("documents", "music", "screenshots", "knowledge", "webhooks")


@lru_cache
def flows() -> "tuple[Flow, ...]":
    """All flows. Imported when somebody asks for all of them: who only submits a document needs no other flow."""
    return tuple(import_module(f"{__name__}.{name}").FLOW for name in FLOWS)


gates.declare(flows)
