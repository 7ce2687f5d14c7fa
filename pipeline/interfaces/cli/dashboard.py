"""Flower's arguments: where it listens, and that nobody beyond this machine looks without a login."""

import os
from collections.abc import Sequence

from pipeline.engine.errors import UserError
from pipeline.standalone.address import is_loopback

LOOPBACK = "127.0.0.1"
COLUMNS = "name,state,result,received,runtime,worker,uuid"
"""Of Flower's page of tasks: a page that failed is in the result of a message that succeeded."""


def flower_arguments(given: Sequence[str]) -> list[str]:
    """Flower's options as they were given, made safe: by default it listens on this machine's own address only.

    Raises `UserError` where it would listen elsewhere without a login, and for options that it does not understand.
    """
    from flower.command import apply_env_options, apply_options
    from flower.options import options
    from tornado.options import Error

    asked = "FLOWER_CONF" in os.environ or any(argument.startswith("--conf") for argument in given)
    # Flower itself would run a flowerconfig.py that lies in the current folder.
    arguments = [*([] if asked else [f"--conf={os.devnull}"]), *given]
    options.address, options.tasks_columns = LOOPBACK, COLUMNS
    try:
        # As Flower does: variables, then its file, then the command line.
        apply_env_options()
        apply_options("flower", arguments)
    except (Error, KeyError, ValueError) as error:
        raise UserError(f"Flower does not understand its options: {error}", code="usage") from error
    arguments.append(f"--tasks_columns={options.tasks_columns}")
    if options.unix_socket:
        return arguments
    if not is_loopback(options.address) and not _has_login(options.basic_auth, options.auth):
        raise UserError(
            f"Flower would listen on {options.address or 'every address'} without a login: set "
            f"FLOWER_BASIC_AUTH=name:password, or leave its address at {LOOPBACK}",
            code="usage",
        )
    return [*arguments, f"--address={options.address}"]


def _has_login(passwords: Sequence[str] | None, emails: str) -> bool:
    """Whether everybody has to say who they are: each of several logins has a password, or there is OAuth."""
    pairs = [login.partition(":") for login in passwords or ()]
    return bool(emails) if not pairs else all(name and password for name, _, password in pairs)
