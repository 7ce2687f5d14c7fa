"""The program, and its reports of errors at the terminal."""

import errno
import io
import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from pipeline.engine import privacy
from pipeline.engine.errors import NoWorkerWarning, PenstockError
from pipeline.interfaces.cli.commands import Commands, add_commands
from pipeline.interfaces.cli.output import err, print_text

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
_USAGE = frozenset(
    {
        "usage",
        "bad_value",
        "bad_name",
        "bad_url",
        "bad_time",
        "bad_range",
        "bad_limit",
        "bad_zone",
        "page_range",
        "empty_query",
        "unknown_provider",
        "unknown_setting",
        "unknown_queue",
        "unknown_breaker",
        "relative_path",
    }
)
"""Codes of errors about arguments: values that no option takes, and names that the settings lack."""
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print_text(f"penstock {version('penstock')}\n")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
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
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  # its callback prints it
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if context.obj is not None:
        context.obj()


add_commands(app)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partial, 130 interrupted."""
    privacy.begin()
    if isinstance(sys.stdout, io.TextIOWrapper):  # None without a terminal, and any object in tests
        sys.stdout.reconfigure(errors="backslashreplace")  # like standard error: no text makes printing fail
    warnings.simplefilter("ignore", NoWorkerWarning)  # waiting commands report an interrupt themselves
    try:
        try:
            app(obj=_configure_logs)
        finally:
            sys.stdout.flush()  # not at exit, where an error would print a traceback
    except PenstockError as error:
        _fail(str(error), WRONG_USAGE if getattr(error, "code", "") in _USAGE else FAILED)
    except KeyboardInterrupt:
        err.print()
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is shown
        if not (sentence := _explained(error)):
            # A defect. It may quote any text.
            err.print(traceback.format_exc(), soft_wrap=True, markup=False, end="")
            sys.exit(FAILED)
        if getattr(error, "errno", None) in _UNWRITABLE:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # drop the rest, which cannot be written either
        _fail(sentence, FAILED)


def _configure_logs() -> None:
    from pipeline.engine.logs import configure

    configure("WARNING", as_json=False, for_command=True)


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
            sentence = "no sentinel names a live Redis master. Try `penstock doctor`."
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
