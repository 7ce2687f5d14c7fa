"""`penstock nodes tokens …`: the tokens that let nodes and sessions connect to the gateway."""

import re
from typing import Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready, ready_context
from pipeline.interfaces.cli.credential import STATE_COLUMNS, Expires, checked_name, life_days, show_once, state_cells
from pipeline.interfaces.cli.output import err, one_line, print_list

app = typer.Typer(
    help="Tokens of nodes and sessions: create, list, revoke. A node's token offers capabilities, a session's requests "
    "them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The token's holder; lists and logs show it.")],
    kind: Annotated[str, typer.Option(help="node: offers capabilities; session: requests jobs.")] = "node",
    node: Annotated[str, typer.Option(metavar="ID", help="The only node that may register with it.")] = "",
    expires: Expires = "",
    as_json: Json = False,
) -> None:
    """Create a token and print it, this once: Penstock keeps only its hash.

    A node connects with it: [bold]penstock node --gateway wss://gateway.example.org --token-file FILE[/bold]

    The pipeline connects with a token of the kind session, as the API key of its provider.
    """
    from pipeline.engine.errors import UserError
    from pipeline.nodes.tokens import TokenKind
    from pipeline.operations import nodes as inference

    name = checked_name(name, "token")
    if kind not in set(TokenKind):
        raise UserError(f"unknown kind '{kind}': choose from {', '.join(TokenKind)}", code="usage")
    if node and (kind != TokenKind.NODE or not re.fullmatch("[A-Za-z0-9_.-]{1,64}", node)):
        raise UserError("--node is the id of a node, for a token of the kind node", code="usage")
    ready()
    created = inference.create_token(name, TokenKind(kind), node, life_days(expires, "token"))
    show_once(created.secret, created.token, "token", f"{kind} {node}".strip(), as_json=as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the tokens, without their secrets."""
    from pipeline.operations import nodes as inference

    now = ready_context().db.now()
    print_list(
        inference.list_tokens(),
        ("ID", "NAME~", "KIND", "ONLY NODE?", *STATE_COLUMNS),
        lambda token: [token.id, one_line(token.name), str(token.kind), token.node_id, *state_cells(token, now)],
        as_json=as_json,
        none="No tokens: `penstock nodes tokens create NAME` makes one.",
    )


@app.command()
def revoke(token: Annotated[str, typer.Argument(metavar="ID|NAME", help="See `penstock nodes tokens list`.")]) -> None:
    """Revoke a token. Every gateway closes its connections, and refuses new ones with it."""
    from pipeline.operations import nodes as inference

    ready()
    ended = inference.revoke_token(token)
    err.print(f"{ended.id} {one_line(ended.name)}: revoked", soft_wrap=True)
