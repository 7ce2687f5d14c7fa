"""The flows: a package for each, independent of the others, with the same modules.

`FLOWS` lists them. Each package declares its queues and settings, which every process reads (`DECLARATION`). Its module
`flow` has a `FLOW` with the functions that engine, operations and tasks call.
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
    """Import and return all flows. Avoid it where one flow is enough, such as submitting a document."""
    return tuple(import_module(f"{__name__}.{name}.flow").FLOW for name in FLOWS)


def loaded_flows() -> Iterator["Flow"]:
    """Yield the flows that this process has imported so far, in the order of `FLOWS`; imports none."""
    for name in FLOWS:
        flow = getattr(sys.modules.get(f"{__name__}.{name}.flow"), "FLOW", None)
        if flow is not None:
            yield flow


@lru_cache
def declarations() -> tuple[Declaration, ...]:
    """Return the declaration of each flow: its queues with gates, and its settings. This is cheap: it imports no units
    of work."""
    return tuple(import_module(f"{__name__}.{name}").DECLARATION for name in FLOWS)


def check_sections(settings: Settings) -> None:
    """Read the settings that flows and the gateway define in their packages.

    Raises the errors of reading settings, so that a command reports misspelt settings at its start.
    """
    if not settings.sections_set:
        return
    from pipeline.nodes.settings import gateway_settings  # noqa: PLC0415  # only if such settings exist

    gateway_settings(settings)
    for declared in declarations():
        declared.settings(settings)


def gate_registry(settings: Settings) -> GateRegistry:
    """Return the gates of all flows' queues under these settings, for code without a context; with one, use
    `Context.gates`."""
    return GateRegistry(declarations(), settings)
