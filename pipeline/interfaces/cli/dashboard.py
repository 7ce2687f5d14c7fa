"""Flower's arguments: its address, and a login for access from beyond this machine."""

import os
from collections.abc import Sequence

from pipeline.engine.errors import UserError
from pipeline.standalone.address import is_loopback

LOOPBACK = "127.0.0.1"
COLUMNS = "name,state,result,received,runtime,worker,uuid"
"""The columns of Flower's page of tasks. They include the result, which names a failed page of a successful message."""


def flower_arguments(flower_options: Sequence[str]) -> list[str]:
    """Flower's options, made safe: by default it listens on this machine's loopback address.

    Raises `UserError` where it would listen elsewhere without a login, and for options or values that Flower refuses.
    """
    from flower.command import apply_env_options, apply_options
    from flower.options import options
    from tornado.options import Error

    configured = "FLOWER_CONF" in os.environ or any(argument.startswith("--conf") for argument in flower_options)
    # Flower would run a flowerconfig.py from the current folder.
    arguments = [*([] if configured else [f"--conf={os.devnull}"]), *flower_options]
    options.address, options.tasks_columns = LOOPBACK, COLUMNS
    try:
        # In Flower's order: variables, its file, the command line.
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
    """Whether Flower requires a login: OAuth, or a password for every name."""
    pairs = [login.partition(":") for login in passwords or ()]
    return bool(emails) if not pairs else all(name and password for name, _, password in pairs)
