"""Callbacks of arguments and options that complete shortened ids.

They leave a text that no id begins with unchanged: the command then reports the unknown id.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from pipeline.interfaces.cli.command import ready_context

if TYPE_CHECKING:
    from pipeline.storage.context import Context

Callback = Callable[[typer.Context, Any], Any]


def _whole(find: Callable[["Context", str], str | None]) -> Callback:
    def callback(command: typer.Context, value: Any) -> Any:
        if not value or command.resilient_parsing:
            return value
        context = ready_context()
        if isinstance(value, str):
            return find(context, value) or value
        return [find(context, start) or start for start in value]

    return callback


def whole(flow: str, noun: str) -> Callback:
    """Return a callback that completes shortened ids of a flow's rows. It leaves a text that no id begins with
    unchanged, and raises `UserError` for one that several begin with. `noun`: their kind in `Flow.ids`."""
    return _whole(
        lambda context, start: import_module(f"pipeline.flows.{flow}.flow").FLOW.resolve(context, noun, start)
    )


def _scope(context: "Context", start: str) -> str | None:
    scopes = (("documents", "documents"), ("knowledge", "items"), ("music", "runs"))
    matches = (import_module(f"pipeline.flows.{flow}.flow").FLOW.resolve(context, noun, start) for flow, noun in scopes)
    return next((match for match in matches if match), None)


def _base(context: "Context", start: str) -> str | None:
    from pipeline.flows.knowledge import queries
    from pipeline.storage.short_ids import LEAST_BESIDE_NAMES, one_of

    known = queries.bases(context)
    named = len(start) < LEAST_BESIDE_NAMES or any(base.name == start for base in known)
    return None if named else one_of((base.id for base in known), start, "knowledge bases")


def _node(context: "Context", start: str) -> str | None:
    from pipeline.nodes import names, service, tokens
    from pipeline.storage.short_ids import one_of

    own = (token.node_id for token in tokens.list_tokens(context))
    known = {*own, *names.all_names(context), *(node.node_id for node in service.nodes(context))}
    return one_of(known, start, "nodes")


def _job(context: "Context", start: str) -> str | None:
    from pipeline.nodes import service
    from pipeline.storage.short_ids import one_of

    return one_of((job.job_id for job in service.jobs(context, limit=MOST_LISTED)), start, "jobs")


def _instance(context: "Context", start: str) -> str | None:
    from pipeline.nodes import service
    from pipeline.storage.short_ids import one_of

    return one_of((letter.instance_id for letter in service.dlq(context, MOST_LISTED)), start, "instances")


def _letter(context: "Context", start: str) -> str | None:
    from pipeline.nodes import service
    from pipeline.storage.short_ids import one_of

    return one_of((letter.id for letter in service.dlq(context, MOST_LISTED)), start, "dead letters")


MOST_LISTED = 10_000
whole_scope, whole_base, whole_node, whole_job = _whole(_scope), _whole(_base), _whole(_node), _whole(_job)
whole_instance, whole_letter = _whole(_instance), _whole(_letter)
