"""The commands by name: a call imports its own command alone, and `penstock --help` imports none of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from pipeline.engine.control_characters import printable
from pipeline.interfaces.cli.command import help_of

COMMANDS = {
    "convert": ("convert.command:convert", "Convert files to Markdown."),
    "watch": ("convert.inbox:watch", "Convert every file that is in a folder or appears there, until Ctrl-C."),
    "up": (
        "stack:up",
        (
            "Run the whole stack in the foreground: Redis (unless PENSTOCK_REDIS_URL names one), workers, beat, REST "
            "API with\nthe console."
        ),
    ),
    "console": (
        "console:console",
        "Open the console in a browser: documents, screenshots, queues and all else, to look at and to act on.",
    ),
    "api": ("api:api", "Serve the REST API. `penstock up` runs it too; here it is alone, beside your own workers."),
    "mcp": (
        "mcp:mcp",
        "Serve an assistant on this machine by the Model Context Protocol, over standard input and output.",
    ),
    "gateway": (
        "nodes.gateway:gateway",
        "Run an instance of the gateway: nodes connect to it and offer what they can do, sessions ask for it.",
    ),
    "status": (
        "stack:status",
        (
            "Show every flow's work by state, what waits and why, failures, queues, workers, and what providers cost "
            "today."
        ),
    ),
    "workers": (
        "stack:workers",
        "List the workers that live: since when, how many of their places are taken, and what each does.",
    ),
    "doctor": (
        "stack:doctor",
        "Check versions, settings, database, Redis, flows and providers; say how to fix what is wrong (exit code 1).",
    ),
    "migrate": (
        "stack:migrate",
        "Bring the database that PENSTOCK_DATABASE_URL names (or the embedded one) to this version's schema.",
    ),
    "prune": (
        "retention:prune",
        "Let go of what is beyond its time, and say what went: attempts, calls, runs, events, documents, frames.",
    ),
    "search": ("search:search", "Find words in converted documents, knowledge bases and screenshots at once."),
    "events": (
        "events:events",
        "List what changed, newest first: documents completed, runs stopped, items indexed. Or follow it.",
    ),
    "node": (
        "nodes.node:node",
        "Do jobs for a gateway. This machine connects outwards, so it may stand behind NAT or a firewall.",
    ),
    "worker": (
        "stack:worker",
        (
            "Run a Celery worker, by role or with Celery's options: `penstock worker --role cpu`, `penstock worker -Q"
            " cpu`."
        ),
    ),
    "beat": (
        "stack:beat",
        "Run Celery beat, the clock of the sweeper that cleans up after dead workers; options are Celery's.",
    ),
    "flower": (
        "stack:flower",
        "Run the Flower dashboard; options are Flower's. Workers need PENSTOCK_WORKER_EVENTS=true to show up there.",
    ),
    "documents": (
        "documents:app",
        "List and show documents, and search in them; cancel, pause, resume, retry, merge again, delete.",
    ),
    "queues": ("queues:queues", "Show queues with their depths, limits and gates; pause, resume, limit, drain them."),
    "breakers": ("queues:breakers", "Show the providers' breakers; open and close them."),
    "calls": ("calls:app", "Show calls to AI services: what was asked, how long it took, what it cost, how it ended."),
    "settings": (
        "live_settings:app",
        "Settings that take effect on every worker without a restart (for the others see docs/reference/settings.md).",
    ),
    "keys": ("keys:app", "Keys of the REST API: create, show, revoke."),
    "music": (
        "music:app",
        "Sync songs from a music server or a folder, let a model describe them, and find them by words and mood.",
    ),
    "screenshots": (
        "screenshots:app",
        "Take screenshots in, let models (or rules) understand them, and search what happened.",
    ),
    "webhooks": (
        "webhooks:app",
        (
            "Have events (a document is completed, a run has stopped) sent to endpoints, signed as the Standard "
            "Webhooks specification says, and again until they are taken. docs/how-to/webhooks.md has the types, "
            "and how to "
            "verify."
        ),
    ),
    "kb": (
        "knowledge:app",
        "Fill knowledge bases with files, web pages and notes, which are read, chunked and embedded.",
    ),
    "nodes": ("nodes:app", "Inference nodes: machines that connect to a gateway and offer what they can do."),
    "jobs": (
        "nodes.jobs:app",
        (
            "Jobs of inference nodes, while they are done and for some minutes after: list, show, cancel. What came "
            "of them is with whoever asked: `penstock calls`."
        ),
    ),
    "dlq": (
        "nodes.dlq:app",
        (
            "Dead letters of the gateway: messages between its instances that were delivered again and again and "
            "never handled. The jobs they belong to have gone on without them; replay one if its cause is mended, or "
            "drop it."
        ),
    ),
}
"""Where each is, in this package, and the first paragraph of its help."""
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_OF_CELERY = {"worker", "beat", "flower"}
"""Their options are Celery's own, too, `--help` among them."""
_FILLED = {"convert", "watch", "console", "search", "events", "node"}
"""Whose paragraphs fill the lines of the terminal; others keep their own line breaks."""


class Commands(TyperGroup):
    """Commands whose errors about arguments hold no control characters: scripts pass names that strangers chose."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name in COMMANDS:
            self.commands[name] = _command(name)
        return super().resolve_command(ctx, args)

    def make_context(self, *given: Any, **options: Any) -> Any:
        with _printable_errors():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # an error of click, whose classes typer does not export
            error.message = printable(str(getattr(error, "message", "")))  # type: ignore[attr-defined]
        raise


def add_commands(app: typer.Typer) -> None:
    """Give the program all commands, as far as its own help shows them."""
    for name, (_, line) in COMMANDS.items():
        app.command(name, help=line)(lambda: None)


def _command(name: str) -> Any:
    """The command itself, with its options, or its own commands."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"pipeline.interfaces.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.callback()(lambda: None)  # else a single command would be the whole program
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        settings = _PASSED_ON if name in _OF_CELERY else None
        text = help_of(found) if name in _FILLED else None
        alone.command(name, help=text, context_settings=settings)(found)
    return typer.main.get_group(alone).commands[name]
