"""What moves through Penstock: a package for each flow, strangers to one another, with the same rooms inside.

`FLOWS` is the one list of them. Each package declares its queues and settings, which every process reads
(`DECLARATION`); its module `flow` has a `FLOW`, which says all that the rest of the house needs to know.
"""

import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from pipeline.engine.gate_registry import Declaration, GateRegistry
from pipeline.settings import Settings

if TYPE_CHECKING:
    from pipeline.flows.flow import Flow

FLOWS = ("documents", "music", "screenshots", "knowledge", "webhooks")


@lru_cache
def flows() -> "tuple[Flow, ...]":
    """All flows. Imported when somebody asks for all of them: who only submits a document needs no other flow."""
    return tuple(import_module(f"{__name__}.{name}.flow").FLOW for name in FLOWS)


def loaded_flows() -> Iterator["Flow"]:
    """The flows that this process has imported already."""
    for name in FLOWS:
        flow = getattr(sys.modules.get(f"{__name__}.{name}.flow"), "FLOW", None)
        if flow is not None:
            yield flow


@lru_cache
def declarations() -> tuple[Declaration, ...]:
    """What every flow declares. Cheap: it reads settings and imports none of their works."""
    return tuple(import_module(f"{__name__}.{name}").DECLARATION for name in FLOWS)


def check_sections(settings: Settings) -> None:
    """Read the settings that flows and the gateway keep in packages of their own.

    Raises what reading settings raises: a misspelt one is said where a command begins, not by whoever needs it first.
    """
    if not settings.sections_set:
        return
    from pipeline.nodes.settings import gateway_settings  # noqa: PLC0415  # as flows: not for whoever needs none

    gateway_settings(settings)
    for declared in declarations():
        declared.settings(settings)


def gate_registry(settings: Settings) -> GateRegistry:
    """The gates of all flows under these settings, for who has no context: see `Context.gates`."""
    return GateRegistry(declarations(), settings)
