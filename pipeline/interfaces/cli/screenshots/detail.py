"""`penstock screenshots show`: a node down to the calls and frames that it rests on, or a frame."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.interfaces.cli.screenshots.common import MADE_BY, Json, ready
from pipeline.interfaces.cli.screenshots.times import told

if TYPE_CHECKING:
    from tasks.screenshots import NodeDetail, NodeView, ScreenshotView

SHOT = "shot:"


def show(
    reference: Annotated[str, typer.Argument(metavar="ID", help="A node's number, or shot:NUMBER for a frame.")],
    as_json: Json = False,
) -> None:
    """Show a node: what it says, who made it, which calls and frames it rests on. Or a frame, with what was read there.

    [bold]penstock screenshots show 12[/bold], [bold]penstock screenshots show shot:40[/bold]
    """
    from pipeline.flows.screenshots.views import as_json as plain
    from pipeline.interfaces.cli.output import print_json
    from tasks import screenshots

    ready()
    is_shot = reference.startswith(SHOT)
    number = reference.removeprefix(SHOT)
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise typer.BadParameter("a node's number, or shot:NUMBER", param_hint="ID")
    found: Any = screenshots.screenshot(int(number)) if is_shot else screenshots.show(int(number))
    if as_json:
        print_json(plain(found))
    elif is_shot:
        _show_screenshot(found)
    else:
        _show_node(found)


def _show_screenshot(view: "ScreenshotView") -> None:
    from rich.markup import escape

    from pipeline.interfaces.cli.output import one_line, print_pairs, printable, state
    from tasks import screenshots

    zone = screenshots.time_zone()
    gone = {"deleted": "deleted, its time was over", "missing": "missing: somebody else took it away"}
    until = f", kept until {told(view.retention_expires_at, zone)}" if view.retention_expires_at else ""
    batch = f"batch {view.batch_id}" if view.batch_id else "in the buffer: it waits for a batch"
    rows = [
        ("frame", f"shot:{view.id}"),
        ("source", one_line(view.source_key)),
        ("captured", told(view.ts, zone)),
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
    from pipeline.interfaces.cli.output import one_line, print_pairs, state
    from tasks import screenshots

    node, zone = detail.node, screenshots.time_zone()
    went = f" (node {detail.asked_id} went into it)" if detail.asked_id != node.id else ""
    rows = [
        ("node", f"{node.id} {node.kind.value}{went}"),
        ("title", one_line(node.title)),
        ("summary", one_line(node.summary)),
        ("when", told(node.event_time, zone)),
        ("thread", f"{one_line(detail.thread.title)} ({one_line(detail.thread.id)})" if detail.thread else ""),
        ("keywords", one_line(", ".join(node.keywords))),
        ("names", one_line(", ".join(str(entity.get("name", "")) for entity in node.entities))),
        ("weight", f"importance {node.importance}, confidence {node.confidence}, of 10"),
        ("made by", MADE_BY[node.made_by.value]),
        ("merge", state(node.status.value) + (f": {one_line(node.error)}" if node.error else "")),
        ("vector", one_line(f"{node.vector_status} {node.vector_error or ''}")),
        *(("merged", f"{one.id} {one_line(one.title, 100)}") for one in detail.merged),
        *(("related", _edge(node, edge.from_id, edge.to_id, edge.type)) for edge in detail.edges),
    ]
    print_pairs([(name, value) for name, value in [*rows, *_origin(detail)] if value])


def _edge(node: "NodeView", from_id: int, to_id: int, kind: str) -> str:
    from pipeline.interfaces.cli.output import one_line

    said = one_line(kind)  # a model's word
    return f"{said.replace('_', ' ')} node {to_id}" if from_id == node.id else f"node {from_id} is {said} this one"


def _origin(detail: "NodeDetail") -> list[tuple[str, str]]:
    """Node → calls → model, prompt, attempt → frames."""
    from pipeline.interfaces.cli.output import one_line
    from tasks import screenshots

    zone = screenshots.time_zone()
    rows = []
    for act in detail.provenance:
        of = f"merged with node {act.from_node_id}" if act.act == "merged" else f"made from batch {act.batch_id}"
        whom = f"{act.method.value} {one_line(act.model)}".strip()
        rows.append(("origin", f"{of} by {whom}, {told(act.created_at, zone)}"))
    for call in detail.calls:
        frames = ", ".join(f"{SHOT}{number}" for number in call.screenshot_ids)
        repair = " (mending an unusable reply)" if call.ask.value == "repair" else ""
        who = one_line(" ".join(filter(None, (call.provider, call.model)))) or "no model"
        prompt = f", prompt {call.prompt_hash[:12]}" if call.prompt_hash else ""
        rows.append(("call", f"{call.operation.value}{repair}: {who}{prompt}, attempt {call.attempt} → {frames}"))
    if not detail.calls:
        rows.append(("call", "none: no model was asked for this"))
    for shot in detail.screenshots:
        where = f"{one_line(shot.source_key)} {one_line(shot.window_title, 80)}".rstrip()
        rows.append(("frame", f"{SHOT}{shot.id} {told(shot.ts, zone)} {where}"))
    return rows
