"""`penstock dlq …`: messages between the gateway's instances that no instance could handle."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, Limit, ready
from pipeline.interfaces.cli.ids import whole_instance, whole_letter
from pipeline.interfaces.cli.output import err, one_line, print_list
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from pipeline.nodes.views import DeadLetterView

Instance = Annotated[str, typer.Argument(callback=whole_instance, help="The instance that the message was for.")]
Letter = Annotated[str, typer.Argument(metavar="ID", callback=whole_letter, help="See `penstock dlq list`.")]
app = typer.Typer(
    help="Dead letters of the gateway: messages between its instances that were delivered again and again and never "
    "handled. The jobs they belong to have gone on without them; replay one if its cause is mended, or drop it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list")
def list_(limit: Limit = 50, as_json: Json = False) -> None:
    """List dead letters, the newest first."""
    from pipeline.operations import nodes as inference

    def row(letter: "DeadLetterView") -> list[str]:
        about = ", ".join(f"{name} {value}" for name, value in letter.body.items() if name.endswith("_id"))
        tries = str(letter.deliveries)
        return [one_line(letter.instance_id), letter.id, letter.kind, tries, ago(letter.moved_at), one_line(about, 100)]

    columns = ("INSTANCE", "ID", "KIND", "DELIVERIES>", "MOVED", "ABOUT")
    ready()
    print_list(inference.dlq(limit), columns, row, as_json=as_json, none="No dead letters.")


@app.command()
def replay(instance: Instance, letter: Letter) -> None:
    """Put a dead letter back into its inbox. If its instance has died, another instance takes it."""
    from pipeline.operations import nodes as inference

    ready()
    inference.replay(instance, letter)
    err.print(f"{letter}: back in the inbox of {one_line(instance)}", soft_wrap=True)


@app.command()
def drop(instance: Instance, letter: Letter) -> None:
    """Delete a dead letter."""
    from pipeline.operations import nodes as inference

    ready()
    inference.drop(instance, letter)
    err.print(f"{letter}: dropped", soft_wrap=True)
