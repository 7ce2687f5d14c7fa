"""Units of every kind of work, made as rows: for tests of what holds for all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.engine.work import Work
from pipeline.flows import flows
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.music.states import PipelineState
from pipeline.storage.context import Context
from tests.support import music
from tests.support.documents import insert_document


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


@factory("documents.split")
def _split(context: Context, _: int) -> Made:
    return Made(insert_document(context, DocumentStatus.PENDING, []), 1, {"pages": 3, "attempts": 0})


@factory("documents.page")
def _pages(context: Context, count: int) -> Made:
    return Made(insert_document(context, pages=[PageStatus.PENDING] * count), count, {"content": "text"})


@factory("documents.merge")
def _merge(context: Context, _: int) -> Made:
    document_id = insert_document(context, DocumentStatus.READY_TO_MERGE, [PageStatus.COMPLETED])
    return Made(document_id, 1, {"merged_path": "report.md", "attempts": 0})


@factory("music.sync")
def _sync(context: Context, _count: int) -> Made:
    return Made(music.add_run(context, PipelineState.SYNCING), 1, {"synced": True})


@factory("music.batch")
def _batches(context: Context, count: int) -> Made:
    return Made(music.add_run(context, PipelineState.RUNNING, count), count)
