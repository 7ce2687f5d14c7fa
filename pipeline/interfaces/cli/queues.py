"""`penstock queues …` and `penstock breakers …`: looking at gates, and closing and opening them by hand."""

import re
import time
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import UserError

if TYPE_CHECKING:
    from pipeline.storage.context import Context

queues = typer.Typer(
    help="Queues: depth, limits and gates; pause, resume, limit, drain.", rich_markup_mode="rich",
    invoke_without_command=True,
)  # fmt: skip
breakers = typer.Typer(
    help="Breakers of the providers: list, open, close.", rich_markup_mode="rich", invoke_without_command=True
)
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue with a gate; see `penstock queues`.")]
For = Annotated[str, typer.Option("--for", help="How long, like 90s, 10m, 2h. Default: until resumed.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _context() -> "Context":
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import migrate_embedded
    from pipeline.storage.context import get_context

    import_module("pipeline.flows")  # declares the flows to the gates
    migrate_embedded(get_settings())
    return get_context()


def _online() -> "Context":
    context = _context()
    if not context.online:
        raise UserError("Redis is down, so there are no gates to look at: `penstock up` starts it", code="offline")
    return context


def seconds(text: str) -> float | None:
    """A time like `90s`, `10m`, `2h` in seconds; None for an empty text. Raises `UserError`."""
    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if not found or float(found[1]) <= 0:
        raise UserError(f"'{text}' is no time: write it like 90s, 10m or 2h", code="usage")
    return float(found[1]) * _SECONDS[found[2] or "s"]


@queues.callback()
def list_queues(command: typer.Context, as_json: Json = False) -> None:
    """List the queues: waiting, in flight, limits with what is used, and why a gate is closed until when."""
    if command.invoked_subcommand:
        return
    from celeryconfig import task_queues
    from pipeline.engine.metrics import queue_depths
    from pipeline.interfaces.cli.output import Table, print_json
    from pipeline.providers import gates

    context = _online()
    gates.sync(context)
    depths = queue_depths(context.redis, [queue.name for queue in task_queues])
    gated = gates.gated_queues(context.settings)
    rows = [_queue_row(context, gated.get(name), name, depth) for name, depth in depths.items()]
    if as_json:
        print_json(rows)
        return
    shown = Table("QUEUE", "WAITING>", "IN FLIGHT>", "LIMITS (USED)", "GATE", "REASON?", "RESUMES?")
    for row in rows:
        limits = ", ".join(f"{limit['limit']} ({limit['used']})" for limit in row["limits"])
        flight = "" if row["in_flight"] is None else str(row["in_flight"])
        shown.add(row["queue"], str(row["waiting"]), flight, limits, row["gate"], row["reason"], row["resumes"])
    shown.print()


def _queue_row(context: "Context", queue: Any, name: str, depth: int) -> dict[str, Any]:
    from pipeline.engine.limits import format_windows
    from pipeline.providers import gates

    row: dict[str, Any] = {"queue": name, "waiting": depth, "in_flight": None, "limits": [], "gate": "none"}
    row |= {"reason": "", "resumes": ""}
    if queue is None:
        return row
    state = gates.gate(context, queue).look()
    row["in_flight"] = state.in_flight
    row["limits"] = [
        {"limit": format_windows([used.window]), "used": used.used, "of": of}
        for of, windows in (("queue", state.queue.windows), (queue.provider, state.provider.windows))
        for used in windows
    ]
    row["gate"] = f"closed ({state.closed_by})" if state.closed else "open"
    if state.closed:
        _, left_s, row["reason"] = state.closed
        row["resumes"] = _in(left_s)
    return row


def _in(left_s: float | None) -> str:
    if left_s is None or left_s == float("inf"):
        return "when resumed"
    hours, rest = divmod(int(left_s), 3600)
    return f"in {hours} h {rest // 60} min" if hours else f"in {rest // 60} min {rest % 60} s"


@queues.command()
def pause(
    queue: Queue, for_: For = "", reason: Annotated[str, typer.Option(help="Shown beside the pause.")] = ""
) -> None:
    """Let nothing more through; what is in flight ends. Holds on every worker at once, also on later ones."""
    from pipeline.interfaces.cli.output import err
    from pipeline.providers import gates

    gates.pause(_context(), queue, seconds(for_), reason)
    err.print(f"{queue}: paused {'for ' + for_ if for_ else 'until `penstock queues resume ' + queue + '`'}")


@queues.command()
def resume(queue: Queue) -> None:
    """End an operator's pause. A breaker's pause stays: see `penstock breakers close`."""
    from pipeline.interfaces.cli.output import err
    from pipeline.providers import gates

    gates.resume(_context(), queue)
    err.print(f"{queue}: no longer paused by an operator")


@queues.command()
def limit(
    target: Annotated[str, typer.Argument(metavar="QUEUE|PROVIDER", help="A queue, or a provider for all its queues.")],
    limits: Annotated[str, typer.Argument(help="Like '10/s, 500/min, 100000 tokens/min'; '' for none.")],
    concurrency: Annotated[int | None, typer.Option(help="Calls under way at once; 0: no limit.")] = None,
) -> None:
    """Change what a queue, or all queues of a provider together, may send: from now on, on every worker.

    Both hold at once: a queue's limit above its provider's changes nothing.
    """
    from pipeline.interfaces.cli.output import err
    from pipeline.providers import gates

    context = _context()
    if target in context.settings.providers:
        scope, provider = f"provider.{target}", target
    else:
        scope, provider = f"queue.{target}", gates.require(context, target).provider
    value = gates.change_setting(context, f"{scope}.limits", limits)
    if concurrency is not None:
        gates.change_setting(context, f"{scope}.concurrency", str(concurrency))
    err.print(f"{target}: {value or 'no limit'}" + (f", {concurrency} at once" if concurrency else ""))
    shared = gates.live_setting(context, f"provider.{provider}.limits").value
    if target != provider and shared:
        err.print(f"All queues of {provider} together: {shared}")


@queues.command()
def drain(queue: Queue, timeout: Annotated[str, typer.Option(help="Give up after this time.")] = "10m") -> None:
    """Pause a queue and wait until nothing of it is in flight. It stays paused: nothing is lost."""
    from pipeline.interfaces.cli.output import err
    from pipeline.providers import gates

    context = _online()
    at = gates.gate(context, gates.require(context, queue))
    gates.pause(context, queue, None, "drained")
    deadline = time.monotonic() + (seconds(timeout) or 0)
    with err.status(f"{queue}: waiting for calls in flight"):
        while in_flight := at.look().in_flight:
            if time.monotonic() > deadline:
                raise UserError(f"{queue}: {in_flight} calls are still in flight after {timeout}", code="timeout")
            time.sleep(0.1)
    err.print(f"{queue}: nothing in flight; paused until `penstock queues resume {queue}`")


@breakers.callback()
def list_breakers(command: typer.Context, as_json: Json = False) -> None:
    """List the breakers: state, why, and when they let a probe through."""
    if command.invoked_subcommand:
        return
    from dataclasses import asdict

    from pipeline.interfaces.cli.output import Table, err, print_json
    from pipeline.providers import gates

    context = _online()
    found = [gates.breaker(context, name).look() for name in gates.breakers(context.settings)]
    if as_json:
        print_json([asdict(state) for state in found])
        return
    if not found:
        err.print("No breakers: no provider is configured.")
        return
    shown = Table("BREAKER", "STATE", "REASON?", "PROBE", "FAILURES IN A ROW>?")
    for state in found:
        probe = _in(state.left_s) if state.state == "open" else "now" if state.state == "half-open" else ""
        shown.add(state.name, state.state, state.reason, probe, str(state.failures))
    shown.print()


@breakers.command("open")
def open_breaker(name: str, for_: For = "", reason: Annotated[str, typer.Option()] = "by hand") -> None:
    """Open a breaker by hand: the queues of its provider stop. Default: one cool-down."""
    from pipeline.interfaces.cli.output import err
    from pipeline.providers import gates

    context = _online()
    at = gates.require_breaker(context, name)
    left_s = at.open(seconds(for_) or 0.0, reason)
    gates.remember_breaker(context, name, at.look())
    err.print(f"{name}: open, a probe {_in(left_s)}")


@breakers.command("close")
def close_breaker(name: str) -> None:
    """Close a breaker now, with its timer."""
    from pipeline.interfaces.cli.output import err
    from pipeline.providers import gates

    context = _online()
    gates.require_breaker(context, name).close()
    gates.remember_breaker(context, name, None)
    err.print(f"{name}: closed")
