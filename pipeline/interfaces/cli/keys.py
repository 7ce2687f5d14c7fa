"""`penstock keys …`: who may call the REST API."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready_context
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list
from pipeline.interfaces.cli.times import ago, duration_s

if TYPE_CHECKING:
    from pipeline.storage.api_keys import KeyView

app = typer.Typer(help="Keys of the REST API: create, list, revoke.", no_args_is_help=True, rich_markup_mode="rich")
_LONGEST_S = 100 * 366 * 86_400


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is; you see it in lists and logs.")],
    scope: Annotated[str, typer.Option(help="read; write: submit and act too; admin: queues and settings too.")] = (
        "write"
    ),
    expires: Annotated[str, typer.Option(help="After this time, such as 90d. Default: never.")] = "",
    as_json: Json = False,
) -> None:
    """Create a key and print it. It is shown this once: only its hash is kept."""
    from pipeline.engine.errors import UserError
    from pipeline.interfaces.cli.output import printable
    from pipeline.storage import api_keys

    if not name.strip() or len(name) > 100 or printable(name) != name or "\n" in name:
        raise UserError("a key's name has 1 to 100 characters, all printable", code="usage")
    if scope not in set(api_keys.Scope):
        raise UserError(f"there is no scope '{scope}': choose from {', '.join(api_keys.Scope)}", code="usage")
    seconds = duration_s(expires) or 0
    if seconds > _LONGEST_S:
        raise UserError("a key lasts 100 years at most", code="usage")
    lasts = timedelta(seconds=seconds) if seconds else None
    secret, key = api_keys.create(ready_context(), name.strip(), api_keys.Scope(scope), lasts)
    if as_json:
        from pipeline.engine.views import plain

        print_json({**plain(key), "secret": secret})
        return
    until = f", until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at else ""
    err.print(f"Key {key.id} ({one_line(key.name)}, {key.scope}{until}). It is not shown again:", soft_wrap=True)
    typer.echo(secret)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the keys, without their secrets."""
    from pipeline.storage import api_keys

    context = ready_context()
    now = context.db.now()

    def row(key: "KeyView") -> list[str]:
        ended = "revoked" if key.revoked_at else "[green]usable[/green]" if key.usable(now) else "expired"
        used = ago(key.last_used_at) if key.last_used_at else "never"
        until = f"{key.expires_at:%Y-%m-%d}" if key.expires_at else ""
        return [key.id, one_line(key.name), str(key.scope), ended, used, until]

    print_list(
        api_keys.list_keys(context), ("ID", "NAME~", "SCOPE", "STATE", "LAST USED?", "EXPIRES?"), row, as_json=as_json,
        none="No keys: `penstock keys create NAME` makes one.",
    )  # fmt: skip


@app.command()
def revoke(key: Annotated[str, typer.Argument(metavar="ID|NAME", help="See `penstock keys list`.")]) -> None:
    """End a key at once, in every process."""
    from pipeline.storage import api_keys

    ended = api_keys.revoke(ready_context(), key)
    err.print(f"{ended.id} {one_line(ended.name)}: revoked", soft_wrap=True)
