"""Shared by commands for keys and tokens: names, life times, and showing a secret once."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.output import err, one_line, print_json, print_text
from pipeline.interfaces.cli.times import ago, duration_s

if TYPE_CHECKING:
    from datetime import datetime

    from pipeline.storage.credentials import CredentialView

Expires = Annotated[str, typer.Option(help="Expires after this time, such as 90d. Default: never.")]
STATE_COLUMNS = ("STATE", "LAST USED?", "EXPIRES?")
_LONGEST_S = 100 * 366 * 86_400


def checked_name(name: str, noun: str) -> str:
    """The name without blanks around it. Raises `UserError` unless it has 1 to 100 printable characters. `noun`: the
    kind of the credential, for the message."""
    from pipeline.engine.control_characters import printable
    from pipeline.engine.errors import UserError

    if not name.strip() or len(name) > 100 or printable(name) != name or {"\n", "\t"} & set(name):
        raise UserError(f"a {noun}'s name has 1 to 100 characters, all printable", code="usage")
    return name.strip()


def life_days(expires: str, noun: str) -> float | None:
    """Days until the credential expires, from a duration such as `90d`; None for an empty text: never. Raises
    `UserError` for other texts and for more than 100 years."""
    from pipeline.engine.errors import UserError

    seconds = duration_s(expires) or 0
    if seconds > _LONGEST_S:
        raise UserError(f"a {noun} lasts 100 years at most", code="usage")
    return seconds / 86_400 or None


def show_once(secret: str, credential: "CredentialView", noun: str, good_for: str, *, as_json: bool) -> None:
    """Print a new credential: on standard output only the secret, or with `as_json` everything."""
    if as_json:
        from pipeline.engine.views import plain

        print_json({**plain(credential), "secret": secret})
        return
    until = f", until {credential.expires_at:%Y-%m-%d %H:%M} UTC" if credential.expires_at else ""
    label = f"{noun.capitalize()} {credential.id} ({one_line(credential.name)}, {good_for}{until})"
    err.print(f"{label}. Penstock does not show it again:", soft_wrap=True)
    print_text(f"{secret}\n")


def state_cells(credential: "CredentialView", now: "datetime") -> list[str]:
    """A credential's cells for `STATE_COLUMNS`: its state (markup), last use and expiry."""
    state = "revoked" if credential.revoked_at else "[green]usable[/green]" if credential.usable(now) else "expired"
    used = ago(credential.last_used_at) if credential.last_used_at else "never"
    return [state, used, f"{credential.expires_at:%Y-%m-%d}" if credential.expires_at else ""]
