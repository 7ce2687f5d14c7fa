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
    "watch": ("convert.inbox:watch", "Convert every file in a folder, and those that appear there, until Ctrl-C."),
    "connect": ("connect:app", "Convert the documents of another system, and write the results back to it."),
    "compare": (
        "compare.command:compare",
        "Convert a few pages of a file with several providers or models, and show the results side by side.",
    ),
    "up": (
        "stack:up",
        (
            "Run the whole stack in the foreground: Redis (unless PENSTOCK_REDIS_URL names one), workers, beat, REST "
            "API with\nthe console."
        ),
    ),
    "console": (
        "console:console",
        "Open the console in a browser: see documents, screenshots, queues and all other work, and act on it.",
    ),
    "api": ("api:api", "Serve the REST API alone, beside your own workers. `penstock up` runs it too."),
    "mcp": (
        "mcp:mcp",
        "Serve an assistant on this machine by the Model Context Protocol, over standard input and output.",
    ),
    "gateway": (
        "nodes.gateway:gateway",
        "Run an instance of the gateway: nodes connect to it and offer capabilities, sessions request them.",
    ),
    "status": (
        "stack:status",
        ("Show every flow's work by state, what waits and why, failures, queues, workers, and providers' cost today."),
    ),
    "workers": (
        "stack:workers",
        "List live workers: their start, their busy slots, and their jobs.",
    ),
    "doctor": (
        "stack:doctor",
        "Check versions, settings, database, Redis, flows and providers; say how to fix each fault (exit code 1).",
    ),
    "models": (
        "models:models",
        "List the presets for models: what their servers need, licences, scores, and your providers that use each.",
    ),
    "migrate": (
        "stack:migrate",
        "Bring the database that PENSTOCK_DATABASE_URL names (or the embedded one) to this version's schema.",
    ),
    "prune": (
        "retention:prune",
        "Delete attempts, calls, runs, events, documents and frames past their retention, and list them.",
    ),
    "search": ("search:search", "Find words in converted documents, knowledge bases and screenshots at once."),
    "events": (
        "events:events",
        "List events, newest first: documents completed, runs stopped, items indexed. Or follow them.",
    ),
    "node": (
        "nodes.node:node",
        "Run jobs for a gateway. This machine connects outwards, so it may stand behind NAT or a firewall.",
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
    "calls": ("calls:app", "Show calls to AI services: operation, duration, cost, outcome."),
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
        "Ingest screenshots, let models (or rules) analyse them, and search what happened.",
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
    "nodes": ("nodes:app", "Inference nodes: machines that connect to a gateway and run models for it."),
    "jobs": (
        "nodes.jobs:app",
        (
            "Jobs of inference nodes, while they are done and for some minutes after: list, show, cancel. "
            "`penstock calls` shows the calls that they answered."
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
"""The module of each command, in this package, and the first paragraph of its help."""
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_OF_CELERY = {"worker", "beat", "flower"}
"""Commands that also take Celery's options, `--help` among them."""
_FILLED = {"convert", "watch", "compare", "console", "search", "events", "node"}
"""Commands whose paragraphs fill the terminal's lines; others keep their line breaks."""


class Commands(TyperGroup):
    """Commands that strip control characters from errors about arguments: scripts pass names that strangers chose."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name in COMMANDS:
            self.commands[name] = _command(name)
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _printable_errors():
            return super().make_context(*arguments, **options)

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
    """Add an empty command with its line of help for each of `COMMANDS`, for the program's own help. `Commands` imports
    the real one when the user names it."""
    for name, (_, line) in COMMANDS.items():
        app.command(name, help=line)(lambda: None)


def _command(name: str) -> Any:
    """Import a command, and return it for click, with its options and subcommands."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(f"pipeline.interfaces.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.callback()(lambda: None)  # else a single command would be the whole program
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name)
    else:
        settings = _PASSED_ON if name in _OF_CELERY else None
        text = help_of(command) if name in _FILLED else None
        alone.command(name, help=text, context_settings=settings)(command)
    return typer.main.get_group(alone).commands[name]
