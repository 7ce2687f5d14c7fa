"""`penstock settings …`: settings that take effect while workers run."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.output import err, one_line, print_list, print_text

if TYPE_CHECKING:
    from pipeline.engine.live_settings import Value

app = typer.Typer(
    help="Settings that take effect on every worker without a restart (for the others see docs/reference/settings.md).",
    no_args_is_help=True,
)
Key = Annotated[str, typer.Argument(metavar="KEY", help="See `penstock settings list`.")]
Reason = Annotated[str, typer.Option(help="The reason, which lists show beside the value.")]
BY = "command line"


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every live setting with its value and its meaning."""
    from pipeline.operations import live_settings

    ready()

    def row(value: "Value") -> list[str]:
        note = f"[red]{one_line(value.error, 200)}[/red]" if value.error else "default" if value.is_default else "set"
        if value.reason and not value.error:
            note += f": {one_line(value.reason, 100)}"
        return [value.key, one_line(value.text), note, value.help]

    print_list(
        live_settings.list_settings(),
        ("KEY", "VALUE", "", "MEANING?"),
        row,
        as_json=as_json,
        none="No live settings: they belong to providers' queues, and you have configured no provider.",
    )


@app.command()
def get(key: Key) -> None:
    """Print one setting's value."""
    from pipeline.operations import live_settings

    ready()
    print_text(f"{live_settings.setting(key).text}\n")


@app.command("set")
def set_(key: Key, value: str, reason: Reason = "") -> None:
    """Change a setting. It takes effect on every worker within two seconds."""
    from pipeline.engine.live_settings import text_of
    from pipeline.operations import live_settings

    ready()
    err.print(f"{key} = {one_line(text_of(live_settings.change_setting(key, value, reason=reason, by=BY)))}")


@app.command()
def unset(key: Key, reason: Reason = "") -> None:
    """Return a setting to its default."""
    from pipeline.engine.live_settings import text_of
    from pipeline.operations import live_settings

    ready()
    err.print(f"{key} = {one_line(text_of(live_settings.reset_setting(key, reason=reason, by=BY)))} (default)")
