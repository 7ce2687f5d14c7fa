"""`penstock screenshots show`: a node with the calls and frames it is based on, or a frame."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.output import one_line, print_json, print_pairs, printable, state
from pipeline.interfaces.cli.screenshots.status import MADE_BY
from pipeline.interfaces.cli.times import local

if TYPE_CHECKING:
    from tasks.screenshots import NodeDetail, ScreenshotView, WorkStatus

SHOT = "shot:"


def show(
    reference: Annotated[str, typer.Argument(metavar="ID", help="A node's number, or shot:NUMBER for a frame.")],
    as_json: Json = False,
) -> None:
    """Show a node: what it says, who made it, and the calls and frames it is based on. Or a frame with its text.

    [bold]penstock screenshots show 12[/bold], [bold]penstock screenshots show shot:40[/bold]
    """
    from tasks import screenshots

    ready()
    is_shot = reference.startswith(SHOT)
    number = reference.removeprefix(SHOT)
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise typer.BadParameter("a node's number, or shot:NUMBER", param_hint="ID")
    found: Any = screenshots.screenshot(int(number)) if is_shot else screenshots.show(int(number))
    if as_json:
        print_json(found)
    elif is_shot:
        _show_screenshot(found)
    else:
        _show_node(found)


def _show_screenshot(view: "ScreenshotView") -> None:
    from tasks import screenshots

    zone = screenshots.time_zone()
    gone = {"deleted": "deleted after its retention time", "missing": "missing: it was removed by something else"}
    until = f", kept until {local(view.retention_expires_at, zone)}" if view.retention_expires_at else ""
    batch = f"batch {view.batch_id}" if view.batch_id else "in the buffer: waiting for a batch"
    rows = [
        ("frame", f"shot:{view.id}"),
        ("source", one_line(view.source_key)),
        ("captured", local(view.ts, zone)),
        ("app", one_line(view.app or view.app_guess) + ("" if view.app or not view.app_guess else " (a guess)")),
        ("window", one_line(view.window_title)),
        ("state", state(view.status.value) + f", {batch}"),
        ("why", one_line(view.error)),
        ("file", one_line(str(view.path)) + until if view.path else gone.get(view.storage_state, view.storage_state)),
        ("names", one_line(", ".join(view.detected_entities))),
        ("on screen", one_line(" | ".join(view.ui_text_snippets), 400)),
        ("text", escape(printable(view.ocr_text or ""))),
    ]
    print_pairs([(name, value) for name, value in rows if value])


def _show_node(detail: "NodeDetail") -> None:
    from tasks import screenshots

    node, zone = detail.node, screenshots.time_zone()
    went = f" (node {detail.asked_id} went into it)" if detail.asked_id != node.id else ""
    edges = [
        f"{one_line(edge.type).replace('_', ' ')} node {edge.to_id}" if edge.from_id == node.id
        else f"node {edge.from_id} is {one_line(edge.type)} this one"
        for edge in detail.edges
    ]  # fmt: skip
    rows = [
        ("node", f"{node.id} {node.kind.value}{went}"),
        ("title", one_line(node.title)),
        ("summary", one_line(node.summary)),
        ("when", local(node.event_time, zone)),
        ("thread", f"{one_line(detail.thread.title)} ({one_line(detail.thread.id)})" if detail.thread else ""),
        ("keywords", one_line(", ".join(node.keywords))),
        ("names", one_line(", ".join(str(entity.get("name", "")) for entity in node.entities))),
        ("weight", f"importance {node.importance}, confidence {node.confidence}, of 10"),
        ("made by", MADE_BY[node.made_by.value]),
        ("merge", _with_reason(node.status, node.error)),
        ("vector", _with_reason(detail.vector, detail.vector_error)),
        *(("merged", f"{one.id} {one_line(one.title, 100)}") for one in detail.merged),
        *(("related", edge) for edge in edges),
    ]
    print_pairs([(name, value) for name, value in [*rows, *_origin(detail)] if value])


def _with_reason(status: "WorkStatus | None", error: str | None) -> str:
    return state(status.value) + (f": {one_line(error)}" if error else "") if status else ""


def _origin(detail: "NodeDetail") -> list[tuple[str, str]]:
    """The node's origins, the calls behind them (model, prompt, attempt), and their frames."""
    from tasks import screenshots

    zone = screenshots.time_zone()
    rows = []
    for act in detail.provenance:
        of = f"merged with node {act.from_node_id}" if act.act == "merged" else f"made from batch {act.batch_id}"
        whom = f"{act.method.value} {one_line(act.model)}".strip()
        rows.append(("origin", f"{of} by {whom}, {local(act.created_at, zone)}"))
    for call in detail.calls:
        frames = ", ".join(f"{SHOT}{number}" for number in call.screenshot_ids)
        repair = " (repairing an unusable reply)" if call.ask.value == "repair" else ""
        who = one_line(" ".join(filter(None, (call.provider, call.model)))) or "no model"
        prompt = f", prompt {call.prompt_hash[:12]}" if call.prompt_hash else ""
        rows.append(("call", f"{call.operation.value}{repair}: {who}{prompt}, attempt {call.attempt} → {frames}"))
    if not detail.calls:
        rows.append(("call", "none: no model was asked"))
    for shot in detail.screenshots:
        where = f"{one_line(shot.source_key)} {one_line(shot.window_title, 80)}".rstrip()
        rows.append(("frame", f"{SHOT}{shot.id} {local(shot.ts, zone)} {where}"))
    return rows
