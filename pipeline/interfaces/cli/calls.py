"""`penstock calls …`: the record of every call to an AI service."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.errors import OUTCOMES, UserError
from pipeline.engine.views import money
from pipeline.interfaces.cli.command import Json, Limit, ready
from pipeline.interfaces.cli.ids import whole_scope
from pipeline.interfaces.cli.output import one_line, out, print_json, print_list, print_pairs
from pipeline.interfaces.cli.times import Since, Until, local, moment, zone_of_here

if TYPE_CHECKING:
    from pipeline.providers.calls import CallFilter, CallStats, CallView

app = typer.Typer(
    help="Show calls to AI services: operation, duration, cost, outcome.\n\n"
    "Start with: [bold]penstock calls stats --since 1d[/bold]; then "
    "[bold]penstock calls list --status failed[/bold] and [bold]penstock calls show ID[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Flow = Annotated[str, typer.Option(help="Only calls of this flow: documents, music, screenshots.")]
Scope = Annotated[
    str, typer.Option(metavar="ID", callback=whole_scope, help="Only calls for this document, run or batch.")
]
Provider = Annotated[str, typer.Option(metavar="NAME", help="Only calls of this provider.")]
Model = Annotated[str, typer.Option(metavar="NAME", help="Only calls of this model.")]
Kind = Annotated[
    str, typer.Option("--capability", metavar="KIND", help="Only this capability: vision, text, embeddings.")
]
Status = Annotated[str, typer.Option(help=f"Only calls with this outcome: {', '.join(OUTCOMES)}.")]


def _filter(
    flow: str, scope: str, provider: str, model: str, capability: str, status: str, since: str, until: str
) -> "CallFilter":
    from pipeline.flows import FLOWS
    from pipeline.providers.calls import CallFilter, Capability

    _one_of("--flow", flow, FLOWS)
    _one_of("--capability", capability, Capability)
    _one_of("--status", status, OUTCOMES)
    zone = zone_of_here()
    begin, end = moment(since, zone), moment(until, zone, "--until")
    if begin and end and begin >= end:
        raise UserError("the range ends before it begins", code="usage")
    return CallFilter(flow, scope, provider, model, capability, status, begin, end)


def _one_of(option: str, value: str, known: Iterable[str]) -> None:
    if value and value not in (known := list(known)):
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}", param_hint=option)


@app.command("list")
def list_(
    flow: Flow = "",
    scope: Scope = "",
    provider: Provider = "",
    model: Model = "",
    capability: Kind = "",
    status: Status = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List calls, newest first.

    [bold]penstock calls list --provider openai --status failed --since 2h[/bold]
    """
    from pipeline.operations import calls

    which = _filter(flow, scope, provider, model, capability, status, since, until)
    ready()
    matches = calls.list_calls(which, limit=limit)

    def row(call: "CallView") -> list[str]:
        about = f"{call.scope_id} {call.unit}".strip()
        ended = f"[red]{one_line(call.status)}[/red]" if call.failed else "ok"
        return [
            str(call.id),
            local(call.created_at, zone_of_here()),
            one_line(call.flow),
            one_line(about),
            one_line(call.operation),
            one_line(call.provider),
            one_line(call.model),
            ended,
            f"{call.latency_ms:,}",
            _tokens(call),
            _cost(call.cost),
            one_line(call.error, 200),
        ]

    columns = (
        "ID>",
        "WHEN",
        "FLOW?",
        "ABOUT?",
        "OPERATION?",
        "PROVIDER",
        "MODEL~?",
        "STATUS",
        "MS>",
        "TOKENS IN+OUT>?",
        "COST>?",
        "ERROR~?",
    )
    print_list(matches, columns, row, as_json=as_json, none="" if matches or as_json else _none())


@app.command()
def show(
    call_id: Annotated[int, typer.Argument(metavar="ID", help="See `penstock calls list`.")], as_json: Json = False
) -> None:
    """Show one call: its subject, figures and error, and the beginning of the answer."""
    from pipeline.operations import calls

    ready()
    call = calls.show(call_id)
    if as_json:
        print_json(call)
        return
    tokens = f"{call.input_tokens:,} in, {call.output_tokens:,} out"
    pairs = [
        ("call", str(call.id)),
        ("when", local(call.created_at, zone_of_here())),
        ("for", one_line(f"{call.flow}: {call.operation} ({call.capability})")),
        ("about", one_line(f"{call.scope_id} {call.unit}".strip()) or "nothing by itself"),
        ("provider", one_line(f"{call.provider}, model {call.model}")),
        ("status", f"[red]{one_line(call.status)}[/red]" if call.failed else "ok"),
        ("took", f"{call.latency_ms:,} ms"),
        ("tokens", tokens),
        ("cost", _cost(call.cost) or "0, or its model has no price (PENSTOCK_PROVIDERS__<NAME>__PRICES)"),
    ]
    pairs += [("error" if call.failed else "note", one_line(call.error))] if call.error else []
    print_pairs([(name, value.replace("<NAME>", one_line(call.provider).upper())) for name, value in pairs])
    if call.preview:
        out.print(f"\n{one_line(call.preview)}", soft_wrap=True)


@app.command()
def stats(
    by: Annotated[
        str,
        typer.Option(
            help="provider, model, flow, capability, operation, scope (document, run, batch), status, day, hour."
        ),
    ] = "provider",
    flow: Flow = "",
    scope: Scope = "",
    provider: Provider = "",
    model: Model = "",
    capability: Kind = "",
    status: Status = "",
    since: Since = "",
    until: Until = "",
    as_json: Json = False,
) -> None:
    """Sum up calls: their number, failures, durations, tokens and cost.

    Times are those of successful calls: half of them took at most P50, 95 of 100 at most P95.

    [bold]penstock calls stats --by day --provider openai --since 7d[/bold]
    """
    from pipeline.operations import calls
    from pipeline.providers.calls import By

    which = _filter(flow, scope, provider, model, capability, status, since, until)
    _one_of("--by", by, By)
    ready()
    summary = calls.summary(which, By(by))
    if as_json:
        print_json(summary)
        return

    def row(group: "CallStats") -> list[str]:
        times = ("" if ms is None else f"{ms:,.0f}" for ms in (group.mean_ms, group.p50_ms, group.p95_ms))
        name = one_line(group.group) if group in summary.groups else "[bold]all[/bold]"
        failed = f"{group.failed:,} ({group.failure_rate:.1%})" if group.failed else "0"
        tokens = (f"{group.input_tokens:,}", f"{group.output_tokens:,}")
        return [name, f"{group.calls:,}", failed, *times, *tokens, _cost(group.cost)]

    columns = (by.upper(), "CALLS>", "FAILED>", "MEAN MS>?", "P50 MS>", "P95 MS>", "TOKENS IN>?", "OUT>?", "COST>")
    rows = [*summary.groups, *([summary.total] if summary.total and len(summary.groups) > 1 else [])]
    print_list(rows, columns, row, as_json=False, none="" if rows else _none())


def _tokens(call: "CallView") -> str:
    return f"{call.input_tokens:,}+{call.output_tokens:,}" if call.input_tokens or call.output_tokens else ""


def _cost(cost: float) -> str:
    """The cost as text; empty for 0."""
    return money(cost) if cost else ""


def _none() -> str:
    """A sentence for an empty list: no call is on record, or none matches the filter, with the providers on record."""
    from pipeline.operations.calls import stats

    known = stats()
    if not known:
        return (
            "No calls on record. Penstock makes calls once you configure a provider (docs/reference/settings.md); "
            "local conversion "
            "makes none."
        )
    providers = ", ".join(f"{group.group} ({group.calls:,})" for group in known)
    return f"No call matches. On record are calls of {one_line(providers)}."
