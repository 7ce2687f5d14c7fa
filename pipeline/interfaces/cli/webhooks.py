"""`penstock webhooks …`: sends events to endpoints."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, Limit, ready, warn_if_no_stack
from pipeline.interfaces.cli.ids import whole
from pipeline.interfaces.cli.output import err, escape, one_line, out, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.times import Since, Until, ago, moment, zone_of_here

if TYPE_CHECKING:
    from pipeline.flows.webhooks.queries import AttemptView, DeliveryView, EndpointView

_ENDPOINT = whole("webhooks", "endpoints")
Endpoint = Annotated[str, typer.Argument(callback=_ENDPOINT, help="The endpoint's id: `penstock webhooks list`.")]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only events of this type: document.completed, document.*. Repeatable."),
]
app = typer.Typer(
    help="Have events (a document is completed, a run has stopped) sent to endpoints, signed as the Standard Webhooks "
    "specification says, and again until they are taken. docs/how-to/webhooks.md has the types, and how to verify.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command()
def create(
    url: Annotated[str, typer.Argument(help="The endpoint's address.")],
    types: Types = None,
    description: Annotated[str, typer.Option(help="The endpoint's description.")] = "",
    as_json: Json = False,
) -> None:
    """Add an endpoint, for all events from now on. Prints its secret once: the receiver verifies with it.

    For example: [bold]penstock webhooks create https://example.com/hook --type 'document.*'[/bold]
    """
    from pipeline.operations import webhooks

    ready()
    created = webhooks.create(url, types or [], description)
    if as_json:
        print_json(created)
        return
    err.print(f"Endpoint {created.endpoint.id} is added. Its secret, which Penstock does not show again:")
    out.print(created.secret, markup=False, soft_wrap=True)
    warn_if_no_stack()


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List endpoints with their state."""
    from pipeline.operations import webhooks

    def row(view: "EndpointView") -> list[str]:
        wanted = ", ".join(view.types) or "all"
        return [view.id, _how(view), one_line(wanted, 40), ago(view.created_at), one_line(view.url)]

    ready()
    none = "No endpoints. `penstock webhooks create URL` adds one."
    print_list(webhooks.endpoints(), ("ID", "STATE", "TYPES~", "CREATED?", "URL"), row, as_json=as_json, none=none)


def _how(view: "EndpointView") -> str:
    if not view.active:
        return f"[red]disabled[/red] ({one_line(view.disabled_because)})"
    if view.failures:
        return f"[yellow]failing[/yellow] ({view.failures}×, since {ago(view.failing_since)})"
    return "[green]active[/green]"


@app.command()
def change(
    endpoint: Endpoint,
    url: Annotated[str | None, typer.Option(help="The new address.")] = None,
    types: Types = None,
    enable: Annotated[bool | None, typer.Option("--enable/--disable", help="Send events to it, or stop.")] = None,
    as_json: Json = False,
) -> None:
    """Change an endpoint. A newly enabled one gets events from then on; `replay --since` sends earlier ones."""
    from pipeline.operations import webhooks

    ready()
    changed = webhooks.change(endpoint, url=url, types=types or None, active=enable)
    if as_json:
        print_json(changed)
    else:
        err.print(f"Endpoint {changed.id} is {'active' if changed.active else 'disabled'}.")


@app.command()
def secret(endpoint: Endpoint, as_json: Json = False) -> None:
    """Replace an endpoint's secret. Prints the new one once; for a day, the former one signs as well."""
    from pipeline.operations import webhooks

    ready()
    exchanged = webhooks.exchange_secret(endpoint)
    if as_json:
        print_json(exchanged)
        return
    err.print(
        f"The new secret of {endpoint}, which Penstock does not show again; the former one signs for one more day:"
    )
    out.print(exchanged.secret, markup=False, soft_wrap=True)


@app.command("test")
def send_test(endpoint: Endpoint, as_json: Json = False) -> None:
    """Send the event `webhook.test` to an endpoint, also if it is subscribed to other types."""
    from pipeline.operations import webhooks

    ready()
    _print_result(webhooks.test(endpoint), as_json=as_json)


@app.command()
def delete(endpoint: Endpoint) -> None:
    """Delete an endpoint with its deliveries."""
    from pipeline.operations import webhooks

    ready()
    webhooks.remove(endpoint)
    err.print(f"Endpoint {endpoint} is deleted.", markup=False)


@app.command()
def deliveries(
    delivery: Annotated[
        int | None, typer.Argument(help="Show this delivery with all its attempts. Default: list deliveries.")
    ] = None,
    endpoint: Annotated[str, typer.Option(callback=_ENDPOINT, help="Only deliveries to this endpoint.")] = "",
    status: Annotated[
        str, typer.Option(help="Only deliveries in this state: pending, sending, delivered, failed.")
    ] = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List deliveries, the newest first; or show one with all its attempts."""
    from pipeline.flows.webhooks.states import DeliveryStatus
    from pipeline.operations import webhooks

    ready()
    if delivery is not None:
        _show(webhooks.delivery(delivery), webhooks.attempts(delivery), as_json=as_json)
        return
    if status and status not in set(DeliveryStatus):
        raise typer.BadParameter(f"choose from {', '.join(DeliveryStatus)}", param_hint="--status")
    rows = webhooks.deliveries(endpoint or None, DeliveryStatus(status) if status else None, limit=limit)

    def row(view: "DeliveryView") -> list[str]:
        return [
            str(view.id),
            view.endpoint_id,
            view.type,
            state(view.status.value),
            str(view.attempts),
            str(view.response_status or ""),
            ago(view.created_at),
            one_line(view.error, 100),
        ]

    columns = ("ID>", "ENDPOINT", "TYPE", "STATE", "TRIES>", "STATUS>", "CREATED?", "ERROR")
    print_list(rows, columns, row, as_json=as_json, none="No deliveries.")


def _show(view: "DeliveryView", attempts: "list[AttemptView]", *, as_json: bool) -> None:
    if as_json:
        print_json({"delivery": view, "attempts": attempts})
        return
    print_pairs(
        [
            ("endpoint", view.endpoint_id),
            ("event", f"{view.seq or 'test'} {view.type}"),
            ("state", state(view.status.value)),
            *([("error", escape(view.error))] if view.error else []),
            *(
                (
                    f"attempt {number}",
                    f"{attempt.response_status or 'no answer'}, {attempt.latency_ms:,} ms, {ago(attempt.created_at)}"
                    + (f": {one_line(attempt.error or attempt.preview)}" if attempt.error or attempt.preview else ""),
                )
                for number, attempt in enumerate(attempts, start=1)
            ),
        ]
    )


@app.command()
def replay(
    delivery: Annotated[int | None, typer.Argument(help="The delivery to send again.")] = None,
    endpoint: Annotated[
        str, typer.Option(callback=_ENDPOINT, help="Send this endpoint all events from this time on again.")
    ] = "",
    since: Since = "",
    until: Until = "",
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="Every delivery that failed at its last attempt, of all endpoints or of --endpoint."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Repeat a delivery, all failed ones, or all events since a time, also from while the endpoint was disabled.

    For example: [bold]penstock webhooks replay 17[/bold], [bold]penstock webhooks replay --failed[/bold], or
    [bold]penstock webhooks replay --endpoint ep_… --since 2h[/bold].
    """
    from pipeline.operations import webhooks

    if failed and (delivery is not None or since or until):
        raise typer.BadParameter("goes with --endpoint alone", param_hint="--failed")
    if not failed and (delivery is None) == (not endpoint):
        raise typer.BadParameter("give a delivery, --failed, or --endpoint with --since", param_hint="DELIVERY")
    ready()
    if failed:
        _print_count(webhooks.replay_failed(endpoint or None), "delivery", as_json=as_json)
        return
    if delivery is not None:
        _print_result(webhooks.replay(delivery), as_json=as_json)
        return
    zone = zone_of_here()
    begin = moment(since, zone)
    if begin is None:
        raise typer.BadParameter("give a time to start from, such as 2h", param_hint="--since")
    queued = webhooks.replay_range(endpoint, begin, moment(until, zone, "--until"))
    _print_count(queued, "event", as_json=as_json)


def _print_count(queued: int, noun: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"replayed": queued})
    else:
        err.print(f"{count(queued, noun)} will be sent again.")


def _print_result(view: "DeliveryView", *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        err.print(f"Delivery {view.id} is {view.status.value}: `penstock webhooks deliveries {view.id}` shows it.")
    warn_if_no_stack()
