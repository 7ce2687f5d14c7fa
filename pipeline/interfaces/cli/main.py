"""The commands, and how errors are reported at the terminal."""

import errno
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipeline.engine import privacy
from pipeline.engine.control_characters import printable
from pipeline.engine.errors import NoWorkerWarning, PenstockError
from pipeline.engine.logs import configure
from pipeline.interfaces.cli import (
    api,
    calls,
    console,
    convert,
    documents,
    events,
    keys,
    knowledge,
    live_settings,
    mcp,
    music,
    nodes,
    queues,
    retention,
    screenshots,
    search,
    stack,
    webhooks,
)
from pipeline.interfaces.cli.command import help_of
from pipeline.interfaces.cli.nodes import node
from pipeline.interfaces.cli.output import err, print_text

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
_USAGE = frozenset({
    "usage", "bad_value", "bad_name", "bad_url", "bad_time", "bad_range", "bad_limit", "bad_zone", "page_range",
    "empty_query", "unknown_provider", "unknown_setting", "unknown_queue", "unknown_breaker", "relative_path",
})  # fmt: skip
"""Codes of errors about what was typed: values that no option takes, and names that are not in the settings."""
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print_text(f"penstock {version('penstock')}\n")
        raise typer.Exit


class _Commands(TyperGroup):
    """Commands whose errors about arguments hold no control characters: scripts pass names that strangers chose."""

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


app = typer.Typer(
    cls=_Commands,
    name="penstock",
    help="Turn piles of documents into Markdown with AI models: nothing lost, nothing paid for twice.\n\n"
    "Start with: [bold]penstock convert report.pdf[/bold]",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


app.command("convert", help=help_of(convert.command.convert))(convert.command.convert)
app.command("watch", help=help_of(convert.inbox.watch))(convert.inbox.watch)
app.command("up")(stack.up)
app.command("console", help=help_of(console.console))(console.console)
app.command("api")(api.api)
app.command("mcp")(mcp.mcp)
app.command("gateway")(nodes.gateway.gateway)
app.command("status")(stack.status)
app.command("workers")(stack.workers)
app.command("doctor")(stack.doctor)
app.command("migrate")(stack.migrate)
app.command("prune")(retention.prune)
app.command("search", help=help_of(search.search))(search.search)
app.add_typer(documents.app, name="documents")
app.add_typer(queues.queues, name="queues")
app.add_typer(queues.breakers, name="breakers")
app.add_typer(calls.app, name="calls")
app.command("events", help=help_of(events.events))(events.events)
app.add_typer(live_settings.app, name="settings")
app.add_typer(keys.app, name="keys")
app.add_typer(music.app, name="music")
app.add_typer(screenshots.app, name="screenshots")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(knowledge.app, name="kb")
app.command("node", help=help_of(node.node))(node.node)
app.add_typer(nodes.app, name="nodes")
app.add_typer(nodes.jobs.app, name="jobs")
app.add_typer(nodes.dlq.app, name="dlq")
_passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
app.command("worker", context_settings=_passed_on)(stack.worker)
app.command("beat", context_settings=_passed_on)(stack.beat)
app.command("flower", context_settings=_passed_on)(stack.flower)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partial, 130 interrupted."""
    privacy.begin()
    configure("WARNING", as_json=False, for_command=True)
    if isinstance(sys.stdout, io.TextIOWrapper):  # None without a terminal, and anything in tests
        sys.stdout.reconfigure(errors="backslashreplace")  # as for standard error: no text is a reason to fail
    warnings.simplefilter("ignore", NoWorkerWarning)  # commands that wait say it in their own way
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # not at the process's end, where nobody explains an error
    except PenstockError as error:
        _fail(str(error), WRONG_USAGE if getattr(error, "code", "") in _USAGE else FAILED)
    except KeyboardInterrupt:
        err.print()
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is shown
        if not (sentence := _explained(error)):
            # A defect. What it quotes may be anybody's text.
            err.print(traceback.format_exc(), soft_wrap=True, markup=False, end="")
            sys.exit(FAILED)
        if getattr(error, "errno", None) in _UNWRITABLE:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left cannot be written either
        _fail(sentence, FAILED)


def _fail(sentence: str, code: int) -> None:
    err.print(f"penstock: {sentence}", soft_wrap=True, markup=False)
    sys.exit(code)


def _explained(error: Exception) -> str:
    """A sentence for an error of the environment; empty for a defect."""
    from pydantic import ValidationError
    from redis import RedisError
    from redis.sentinel import MasterNotFoundError
    from sqlalchemy.exc import DBAPIError

    from pipeline.settings import UnreadableSettingsError

    match error:
        case ValidationError():
            sentence = "a setting is wrong: " + "; ".join(map(_setting, error.errors(include_input=False)))
        case UnreadableSettingsError():
            sentence = str(error)
        case DBAPIError():
            sentence = f"the database cannot be used: {str(error.orig).strip().splitlines()[0]}. Try `penstock doctor`."
        case UnicodeEncodeError(object=text):
            sentence = f"an argument is not text in UTF-8: {text[:200]}"
        case MasterNotFoundError():
            sentence = "no sentinel names a living Redis master. Try `penstock doctor`."
        case RedisError():
            sentence = f"Redis cannot be used: {str(error).rstrip('.')}. Try `penstock doctor`."
        case OSError(filename=None, errno=number, strerror=reason) if number in _UNWRITABLE:
            sentence = f"standard output cannot be written to: {reason}"
        case OSError(filename=str(path), strerror=reason):
            sentence = f"{path}: {reason}. PENSTOCK_DATA_DIR names the folder for Penstock's data."
        case _:
            sentence = ""
    return sentence


def _setting(problem: Any) -> str:
    path = [str(part) for part in problem["loc"]]
    message = str(problem["msg"].removeprefix("Value error, "))
    # An error about several settings together has no single location.
    return f"{'.'.join(path)} (PENSTOCK_{'__'.join(path).upper()}): {message}" if path else message
