"""What moves through Penstock: a package for each flow, strangers to one another, with the same rooms inside.

`FLOWS` is the one list of them. Each package declares its queues and settings, which every process reads
(`DECLARATION`); its module `flow` has a `FLOW`, which says all that the rest of the house needs to know.
"""

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from pipeline.providers import gates
from pipeline.settings import Settings

if TYPE_CHECKING:
    from pipeline.flows.flow import Flow

FLOWS = ("documents", "music", "screenshots", "knowledge", "webhooks")


@lru_cache
def flows() -> "tuple[Flow, ...]":
    """All flows. Imported when somebody asks for all of them: who only submits a document needs no other flow."""
    return tuple(import_module(f"{__name__}.{name}.flow").FLOW for name in FLOWS)


@lru_cache
def _declarations() -> tuple[gates.Declaration, ...]:
    return tuple(import_module(f"{__name__}.{name}").DECLARATION for name in FLOWS)


def check_sections(settings: Settings) -> None:
    """Read the settings that flows and the gateway keep in packages of their own.

    Raises what reading settings raises: a misspelt one is said where a command begins, not by whoever needs it first.
    """
    if not settings.sections_set:
        return
    from pipeline.nodes.settings import gateway_settings  # noqa: PLC0415  # as flows: not for whoever needs none

    gateway_settings(settings)
    for declared in _declarations():
        declared.settings(settings)


gates.declare(_declarations)
