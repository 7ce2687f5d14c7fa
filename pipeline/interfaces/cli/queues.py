"""`penstock queues …` and `penstock breakers …`: show gates, close and open them."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import UserError
from pipeline.engine.views import plain
from pipeline.interfaces.cli.command import Json, ready_context
from pipeline.interfaces.cli.output import err, escape, marked, one_line, print_list
from pipeline.interfaces.cli.times import duration_s, span

if TYPE_CHECKING:
    from pipeline.engine.breaker import BreakerState
    from pipeline.providers.breaker_record import BreakerChange
    from pipeline.providers.queue_views import QueueView
    from pipeline.storage.context import Context

queues = typer.Typer(
    help="Show queues with their depths, limits and gates; pause, resume, limit, drain them.",
    rich_markup_mode="rich",
    invoke_without_command=True,
)
breakers = typer.Typer(
    help="Show the providers' breakers; open and close them.", rich_markup_mode="rich", invoke_without_command=True
)
_MEANS = {"closed": "calls flow", "open": "no calls", "half-open": "one probe"}
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue with a gate; see `penstock queues`.")]
For = Annotated[str, typer.Option("--for", help="For this time: 90s, 10m, 2h. Default: until resumed.")]


def _online() -> "Context":
    from pipeline.providers.queue_views import require_online

    context = ready_context()
    require_online(context)
    return context


@queues.callback()
def list_queues(command: typer.Context, as_json: Json = False) -> None:
    """List the queues: messages waiting and in flight, limits and their use, why a gate is closed and until when."""
    if command.invoked_subcommand:
        return
    from pipeline.operations import queues as control

    ready_context()
    rows = [_row(queue) for queue in control.list_queues()]

    def cells(row: dict[str, Any]) -> list[str]:
        limits = ", ".join(f"{limit['limit']} ({limit['used']})" for limit in row["limits"])
        flight = "" if row["in_flight"] is None else str(row["in_flight"])
        name, reason = one_line(row["queue"]), one_line(row["reason"])
        return [name, str(row["waiting"]), flight, limits, row["gate"], reason, row["resumes"]]

    columns = ("QUEUE", "WAITING>", "IN FLIGHT>", "LIMITS (USED)", "GATE", "REASON?", "RESUMES?")
    print_list(rows, columns, cells, as_json=as_json, none="No queues.")


def _row(queue: "QueueView") -> dict[str, Any]:
    from pipeline.engine.gate import CLOSED_BY

    gate = f"closed by {CLOSED_BY[queue.closed_by]}" if queue.closed_by else queue.gate
    resumes = "on its own" if queue.closed_by == "limits" else _in(queue.resumes_in_s) if queue.closed_by else ""
    return {
        "queue": queue.name,
        "waiting": queue.waiting,
        "in_flight": queue.in_flight,
        "limits": plain(queue.limits),
        "gate": gate,
        "reason": queue.reason,
        "resumes": resumes,
    }


def _in(left_s: float | None) -> str:
    return "when resumed" if left_s is None or left_s == float("inf") else f"in {span(left_s)}"


@queues.command()
def pause(
    queue: Queue,
    for_: For = "",
    reason: Annotated[str, typer.Option(help="The reason, which lists show beside the pause.")] = "",
) -> None:
    """Stop new calls; calls in flight finish. Applies at once to every worker, also to those that start later."""
    from pipeline.operations import queues as control

    ready_context()
    control.pause(queue, duration_s(for_), reason)
    err.print(f"{queue}: paused {'for ' + for_ if for_ else 'until `penstock queues resume ' + queue + '`'}")


@queues.command()
def resume(queue: Queue) -> None:
    """End an operator's pause. Names other reasons that keep the queue closed; see `penstock breakers close`."""
    from pipeline.operations import queues as control
    from pipeline.providers import gates

    context = ready_context()
    control.resume(queue)
    still = gates.closed_because(context, queue) if context.online else ""
    err.print(f"{queue}: no longer paused by an operator" + (f", but {escape(still)}" if still else ""), soft_wrap=True)


@queues.command()
def limit(
    target: Annotated[str, typer.Argument(metavar="QUEUE|PROVIDER", help="A queue, or a provider for all its queues.")],
    limits: Annotated[str, typer.Argument(help="Such as '10/s, 500/min, 100000 tokens/min'; '' for none.")],
    concurrency: Annotated[int | None, typer.Option(help="Calls in progress at once; 0: no limit.")] = None,
) -> None:
    """Change the limits of a queue, or of all queues of a provider together, on every worker.

    Both limits apply: a queue's limit above its provider's changes nothing.
    """
    from pipeline.operations import live_settings
    from pipeline.providers import gates

    context = ready_context()
    if target in context.settings.providers:
        scope, provider = f"provider.{target}", target
    else:
        scope, provider = f"queue.{target}", context.gates.require(target).provider
    value = live_settings.change_setting(f"{scope}.limits", limits)
    if concurrency is not None:
        live_settings.change_setting(f"{scope}.concurrency", str(concurrency))
    err.print(f"{target}: {value or 'no limit'}" + (f", {concurrency} at once" if concurrency else ""))
    shared = gates.live_setting(context, f"provider.{provider}.limits").value
    if target != provider and shared:
        err.print(f"All queues of {provider} together: {shared}")


@queues.command()
def drain(queue: Queue, timeout: Annotated[str, typer.Option(help="Give up after this time.")] = "10m") -> None:
    """Pause a queue and wait until none of its calls is in flight. It stays paused; nothing is lost."""
    from pipeline.operations import queues as control
    from pipeline.providers import gates

    context = _online()
    at = gates.gate(context, queue)
    control.pause(queue, None, "drained")
    deadline = time.monotonic() + (duration_s(timeout) or 0)
    with err.status(marked(f"{one_line(queue)}: waiting for calls in flight")):
        while in_flight := at.inspect().in_flight:
            if time.monotonic() > deadline:
                raise UserError(f"{queue}: {in_flight} calls are still in flight after {timeout}", code="timeout")
            time.sleep(0.1)
    err.print(f"{queue}: nothing in flight; paused until `penstock queues resume {queue}`")


@breakers.callback()
def list_breakers(command: typer.Context, as_json: Json = False) -> None:
    """List the breakers: state, reason, and time of the next probe."""
    if command.invoked_subcommand:
        return
    from pipeline.operations import queues as control

    def row(state: "BreakerState") -> list[str]:
        probe = _in(state.left_s) if state.state == "open" else "now" if state.state == "half-open" else ""
        means = f"{state.state} ({_MEANS[state.state]})"
        return [one_line(state.name), means, one_line(state.reason), probe, str(state.failures)]

    ready_context()
    print_list(
        control.list_breakers(),
        ("BREAKER", "STATE", "REASON?", "PROBE", "FAILURES IN A ROW>?"),
        row,
        as_json=as_json,
        none="No breakers: you have configured no provider.",
    )


@breakers.command("history")
def breaker_history(name: str, as_json: Json = False) -> None:
    """List the recent changes of a breaker with their reasons, the newest first."""
    from pipeline.interfaces.cli.times import local, zone_of_here
    from pipeline.operations import queues as control

    ready_context()
    zone = zone_of_here()

    def cells(change: "BreakerChange") -> list[str]:
        return [local(change.at, zone), change.state, one_line(change.reason), local(change.until, zone)]

    print_list(
        control.breaker_history(name),
        ("WHEN", "STATE", "REASON?", "PROBE?"),
        cells,
        as_json=as_json,
        none=f"{name} has never opened.",
    )


@breakers.command("open")
def open_breaker(name: str, for_: For = "", reason: Annotated[str, typer.Option()] = "by hand") -> None:
    """Open a breaker: the queues of its provider and capability stop. Default: for one cool-down."""
    from pipeline.operations import queues as control

    _online()
    left_s = control.open_breaker(name, duration_s(for_) or 0.0, reason)
    err.print(f"{name}: open, a probe {_in(left_s)}")


@breakers.command("close")
def close_breaker(name: str) -> None:
    """Close a breaker now, and cancel its timer: its queues flow again."""
    from pipeline.operations import queues as control

    _online()
    control.close_breaker(name)
    err.print(f"{name}: closed")
