"""`penstock keys …`: the keys of the REST API."""

from typing import Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready, ready_context
from pipeline.interfaces.cli.credential import STATE_COLUMNS, Expires, checked_name, life_days, show_once, state_cells
from pipeline.interfaces.cli.output import err, one_line, out, print_json, print_list, print_pairs
from pipeline.interfaces.cli.times import local, zone_of_here

app = typer.Typer(help="Keys of the REST API: create, show, revoke.", no_args_is_help=True, rich_markup_mode="rich")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The key's holder; lists and logs show it.")],
    scope: Annotated[str, typer.Option(help="read; write: submit and act too; admin: queues and settings too.")] = (
        "write"
    ),
    expires: Expires = "",
    as_json: Json = False,
) -> None:
    """Create a key and print it, this once: Penstock keeps only its hash."""
    from pipeline.engine.errors import UserError
    from pipeline.operations import keys
    from pipeline.storage.api_keys import Scope

    name = checked_name(name, "key")
    if scope not in set(Scope):
        raise UserError(f"unknown scope '{scope}': choose from {', '.join(Scope)}", code="usage")
    ready()
    created = keys.create(name, Scope(scope), life_days(expires, "key"))
    show_once(created.secret, created.key, "key", str(created.key.scope), as_json=as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the keys, without their secrets."""
    from pipeline.operations import keys

    now = ready_context().db.now()
    print_list(
        keys.list_keys(),
        ("ID", "NAME~", "SCOPE", *STATE_COLUMNS),
        lambda key: [key.id, one_line(key.name), str(key.scope), *state_cells(key, now)],
        as_json=as_json,
        none="No keys: `penstock keys create NAME` makes one.",
    )


@app.command()
def show(
    key: Annotated[str, typer.Argument(metavar="ID|NAME", help="See `penstock keys list`.")],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show this many charges, the newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a key's spending today, the amount reserved for its work under way, and its charges."""
    from pipeline.operations import keys
    from pipeline.storage import api_keys

    view = api_keys.find(ready_context(), key)
    account = keys.account(view.id, limit=limit)
    if as_json:
        print_json({"key": view, "account": account})
        return
    cap = f" of {account.cap:g}" if account.cap else ", without a cap (api.spend_per_day)"
    print_pairs(
        [
            ("Key", f"{view.id} {one_line(view.name)}"),
            ("Scope", str(view.scope)),
            ("Spent today", f"{account.spent:.4g}{cap}"),
            ("Reserved", f"{account.reserved:.4g}"),
        ]
    )
    zone = zone_of_here()
    for held in account.reservations:
        out.print(f"  {held.flow} {one_line(held.item_id)} {held.unit}: {held.charged:.4g} of {held.amount:.4g}")
    print_list(
        account.charges,
        ("AT", "COST>", "FLOW", "FOR~", "UNIT?", "OPERATION?", "PROVIDER?", "MODEL~"),
        lambda charge: [
            local(charge.at, zone),
            f"{charge.cost:.4g}",
            charge.flow,
            one_line(charge.scope_id),
            one_line(charge.unit),
            charge.operation,
            charge.provider,
            one_line(charge.model),
        ],
        as_json=False,
        none="It has no charges in the last 90 days.",
    )


@app.command()
def revoke(key: Annotated[str, typer.Argument(metavar="ID|NAME", help="See `penstock keys list`.")]) -> None:
    """End a key at once, in every process."""
    from pipeline.operations import keys

    ready()
    ended = keys.revoke(key)
    err.print(f"{ended.id} {one_line(ended.name)}: revoked", soft_wrap=True)
