"""`penstock settings …`: what can be changed while everything runs."""

from typing import Annotated

import typer

app = typer.Typer(
    help="Settings that hold at once on every worker, without a restart (others: docs/settings.md).",
    no_args_is_help=True,
)
Key = Annotated[str, typer.Argument(metavar="KEY", help="See `penstock settings list`.")]


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="As JSON on standard output.")] = False) -> None:
    """List every live setting with its value and what it means."""
    from dataclasses import asdict

    from pipeline.interfaces.cli.output import Table, err, one_line, print_json
    from pipeline.interfaces.cli.queues import _context
    from pipeline.providers import gates

    found = gates.live_settings(_context())
    if as_json:
        print_json([asdict(value) for value in found])
        return
    if not found:
        err.print("No live settings: they belong to providers' queues, and no provider is configured.")
        return
    rows = Table("KEY", "VALUE", "", "MEANING?")
    for value in found:
        note = f"[red]{one_line(value.error, 200)}[/red]" if value.error else "default" if value.is_default else "set"
        rows.add(value.key, one_line(str(value.value)), note, value.help)
    rows.print()


@app.command()
def get(key: Key) -> None:
    """Print one setting's value."""
    from pipeline.interfaces.cli.queues import _context
    from pipeline.providers import gates

    typer.echo(gates.live_setting(_context(), key).value)


@app.command("set")
def set_(key: Key, value: str) -> None:
    """Change a setting. It is in force on every worker within two seconds."""
    from pipeline.interfaces.cli.output import err
    from pipeline.interfaces.cli.queues import _context
    from pipeline.providers import gates

    err.print(f"{key} = {gates.change_setting(_context(), key, value)}")


@app.command()
def unset(key: Key) -> None:
    """Return a setting to its default."""
    from pipeline.interfaces.cli.output import err
    from pipeline.interfaces.cli.queues import _context
    from pipeline.providers import gates

    err.print(f"{key} = {gates.reset_setting(_context(), key)} (default)")
