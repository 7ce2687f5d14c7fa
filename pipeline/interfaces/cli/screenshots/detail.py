"""`penstock screenshots show`: a node with its calls and frames, a frame, or a batch."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.output import escape, one_line, print_json, print_pairs, state
from pipeline.interfaces.cli.screenshots import ids, picture
from pipeline.interfaces.cli.screenshots.ids import Named
from pipeline.interfaces.cli.screenshots.status import MADE_BY
from pipeline.interfaces.cli.times import local, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.flows.screenshots.states import WorkStatus
    from pipeline.flows.screenshots.views import BatchView, NodeDetail, ScreenshotView


def show(
    reference: Annotated[str, typer.Argument(metavar="ID", help=f"An id from a list: {ids.HOW}.")],
    open_it: Annotated[
        bool, typer.Option("--open", help="Open the picture too: of a node or batch, the first one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a node: its text, the model or rules that made it, its calls and frames. Or a frame with its text.

    [bold]penstock screenshots show n7[/bold], [bold]penstock screenshots show f12 --open[/bold]
    """
    from pipeline.operations import screenshots

    kind, number = ids.parse(reference)
    ready()
    view: Any
    frames: Sequence[ScreenshotView]
    render: Callable[[Any], None]
    match kind:
        case Named.FRAME:
            view = screenshots.screenshot(number)
            frames, render = [view], _show_screenshot
        case Named.BATCH:
            view = screenshots.batch(number)
            frames, render = screenshots.screenshots_of(number) if open_it else [], _show_batch
        case Named.NODE:
            view = screenshots.show(number)
            frames, render = view.screenshots, _show_node
    if as_json:
        print_json(view)
    else:
        render(view)
    if open_it:
        picture.show(frames)


def _show_screenshot(view: "ScreenshotView") -> None:
    from pipeline.operations import screenshots

    zone = screenshots.time_zone()
    until = f", kept until {local(view.retention_expires_at, zone)}" if view.retention_expires_at else ""
    batch = f"batch {ids.batch(view.batch_id)}" if view.batch_id else "in the buffer: waiting for a batch"
    rows = [
        ("frame", ids.frame(view.id)),
        ("source", one_line(view.source_key)),
        ("captured", local(view.ts, zone)),
        ("app", _app(view)),
        ("window", one_line(view.window_title)),
        ("state", state(view.status.value) + f", {batch}"),
        ("attempts", _attempts(view)),
        ("why", one_line(view.error)),
        ("file", one_line(str(view.path)) + until if view.path else picture.GONE.get(view.storage_state, "")),
        ("added as", one_line(view.original_path, 600)),
        ("names", one_line(", ".join(view.detected_entities))),
        ("on screen", one_line(" | ".join(view.ui_text_snippets), 400)),
        ("text", escape(view.ocr_text or "")),
    ]
    print_pairs([(name, value) for name, value in rows if value])


def _app(view: "ScreenshotView") -> str:
    if view.app or not view.app_guess:
        return one_line(view.app)
    sure = f", {view.app_guess_confidence:.0%} sure" if view.app_guess_confidence is not None else ""
    return f"{one_line(view.app_guess)} (a guess{sure})"


def _attempts(view: "ScreenshotView") -> str:
    """The number of vision attempts, with the time of the next one if it is scheduled; empty for less than two attempts
    without a next one."""
    from pipeline.operations import screenshots

    if view.vlm_next_run_at is not None:
        return f"{view.vlm_attempts}, the next {local(view.vlm_next_run_at, screenshots.time_zone())}"
    return str(view.vlm_attempts) if view.vlm_attempts > 1 else ""


def _show_batch(view: "BatchView") -> None:
    from pipeline.operations import screenshots

    zone = screenshots.time_zone()
    times = f"{span(view.run_ms / 1000)}: looking {span(view.vlm_ms / 1000)}, making nodes {span(view.text_ms / 1000)}"
    retry = f"again {local(view.next_run_at, zone)}" if view.next_run_at else ""
    rows = [
        ("batch", f"{ids.batch(view.id)} {one_line(view.correlation_id)}"),
        ("source", one_line(view.source_key)),
        ("captured", f"{local(view.ts_start, zone)} to {local(view.ts_end, zone)}"),
        ("frames", ", ".join(ids.frame(number) for number in view.shot_ids)),
        ("state", ", ".join(filter(None, [state(view.status.value), "" if view.finished_at else view.step, retry]))),
        ("attempts", str(view.total_attempts)),
        ("why", one_line(view.error)),
        ("took", times if view.started_at else ""),
        ("nodes by", MADE_BY[view.made_by]),
        *(("note", one_line(note)) for note in view.notes),
    ]
    print_pairs([(name, value) for name, value in rows if value])


def _show_node(detail: "NodeDetail") -> None:
    from pipeline.operations import screenshots

    node, zone = detail.node, screenshots.time_zone()
    went = f" ({ids.node(detail.asked_id)} went into it)" if detail.asked_id != node.id else ""
    edges = [
        f"{one_line(edge.type).replace('_', ' ')} {ids.node(edge.to_id)}"
        if edge.from_id == node.id
        else f"{ids.node(edge.from_id)} is {one_line(edge.type)} this one"
        for edge in detail.edges
    ]
    rows = [
        ("node", f"{ids.node(node.id)} {node.kind.value}{went}"),
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
        *(
            ("merged", f"{ids.node(merged_node.id)} {one_line(merged_node.title, 100)}")
            for merged_node in detail.merged
        ),
        *(("related", edge) for edge in edges),
    ]
    print_pairs([(name, value) for name, value in [*rows, *_origin(detail)] if value])


def _with_reason(status: "WorkStatus | None", error: str | None) -> str:
    return state(status.value) + (f": {one_line(error)}" if error else "") if status else ""


def _origin(detail: "NodeDetail") -> list[tuple[str, str]]:
    """Rows (name, markup) about a node's origins, its calls (model, prompt, attempt), and its frames."""
    from pipeline.operations import screenshots

    zone = screenshots.time_zone()
    rows = []
    for act in detail.provenance:
        of = (
            f"merged with {ids.node(act.from_node_id)}"
            if act.act == "merged"
            else f"made from {ids.batch(act.batch_id)}"
        )
        author = f"{act.method.value} {one_line(act.model)}".strip()
        rows.append(("origin", f"{of} by {author}, {local(act.created_at, zone)}"))
    for call in detail.calls:
        frames = ", ".join(ids.frame(number) for number in call.screenshot_ids)
        repair = " (repairing an unusable reply)" if call.ask.value == "repair" else ""
        model = one_line(" ".join(filter(None, (call.provider, call.model)))) or "no model"
        prompt = f", prompt {call.prompt_hash[:12]}" if call.prompt_hash else ""
        rows.append(("call", f"{call.operation.value}{repair}: {model}{prompt}, attempt {call.attempt} → {frames}"))
    if not detail.calls:
        rows.append(("call", "none: no model took part"))
    for shot in detail.screenshots:
        where = (one_line(shot.source_key), one_line(shot.window_title, 80), one_line(shot.original_path, 600))
        rows.append(("frame", " ".join(filter(None, (ids.frame(shot.id), local(shot.ts, zone), *where)))))
    return rows
