"""`penstock nodes …`: machines that do AI work for this installation, and the tokens that let them connect."""

import typer

from pipeline.interfaces.cli.nodes import dlq, fleet, gateway, jobs, tokens

app = typer.Typer(
    help="Inference nodes: machines that connect to a gateway and run models for it.\n\n"
    "Start with: [bold]penstock nodes tokens create desk[/bold], then [bold]penstock gateway[/bold] here and "
    "[bold]penstock node --gateway URL --token-file FILE[/bold] where the model is. See docs/how-to/nodes.md.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command("list")(fleet.list_)
app.command("show")(fleet.show)
app.command("drain")(fleet.drain)
app.command("revoke")(fleet.revoke)
app.command("free")(fleet.free)
app.command("status")(fleet.status)
app.add_typer(tokens.app, name="tokens")

__all__ = ["app", "dlq", "gateway", "jobs"]
