"""`penstock nodes list|show|drain|revoke|status`: the connected machines."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.ids import whole_node
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from pipeline.nodes.views import GatewayView, InstanceView, NodeView

NodeId = Annotated[
    str, typer.Argument(metavar="ID", callback=whole_node, help="See `penstock nodes list`; may be shortened.")
]
_COLOURS = {"connected": "green", "draining": "yellow", "gone": "dim"}


def list_(as_json: Json = False) -> None:
    """List the nodes that are or lately were connected to any instance."""
    from pipeline.operations import nodes as inference

    def row(node: "NodeView") -> list[str]:
        slots = f"{node.used}/{node.slots}" if node.slots else ""
        offers = ", ".join(offer.capability for offer in node.offers)
        where = one_line(node.instance_id)
        return [node.node_id, one_line(node.name), _status(node), slots, offers, where, ago(node.last_seen_at)]

    columns = ("ID", "NAME~", "STATE", "BUSY>", "OFFERS", "AT?", "SEEN?")
    none = "No nodes. `penstock nodes tokens create NAME` makes a token, `penstock node` connects with it."
    ready()
    print_list(inference.nodes(), columns, row, as_json=as_json, none=none)


def show(node: NodeId, as_json: Json = False) -> None:
    """Show a node: its capabilities, its speed, and the jobs in its slots."""
    from pipeline.operations import nodes as inference

    ready()
    view = inference.node(node)
    if as_json:
        print_json(view)
        return
    offers = [(f"offers {offer.capability}", one_line(", ".join(offer.models) or "no model")) for offer in view.offers]
    took = [(f"{capability} takes", f"{ms:,.0f} ms") for capability, ms in view.latency_ms.items()]
    print_pairs(
        [
            ("node", one_line(f"{view.node_id} {view.name}")),
            ("state", _status(view)),
            ("seen", ago(view.last_seen_at)),
            ("connected", ago(view.connected_at)),
            ("at", one_line(view.instance_id)),
            ("token", one_line(f"{view.token} ({view.token_id})" if view.token else view.token_id)),
            ("software", one_line(view.software)),
            ("busy", f"{view.used} of {count(view.slots, 'slot')}"),
            *offers,
            *took,
            *((f"slot {number}", job) for number, job in enumerate(view.jobs, start=1)),
        ]
    )


def drain(
    node: NodeId,
    reason: Annotated[str, typer.Option(help="The reason, which the node prints.")] = "",
    as_json: Json = False,
) -> None:
    """Ask a node to finish its jobs and stop. It gets no new jobs, and loses none."""
    from pipeline.operations import nodes as inference

    ready()
    view = inference.drain(node, reason)
    if as_json:
        print_json(view)
        return
    err.print(f"{view.node_id}: will stop after its {count(len(view.jobs), 'job')}", soft_wrap=True)


def revoke(node: NodeId, as_json: Json = False) -> None:
    """Disconnect a node at once, and revoke its token if it is for this node alone. Its jobs go to other nodes.

    With a token that other nodes may use too, the node could come back: the command then names the token to revoke.
    """
    from pipeline.operations import nodes as inference

    ready()
    done = inference.revoke(node)
    if as_json:
        print_json(done)
        return
    err.print(f"{done.node_id}: {'its connection is closed' if done.was_connected else 'it was not connected'}")
    for token in done.tokens:
        err.print(f"Its token {token.id} ({one_line(token.name)}) is revoked.", soft_wrap=True)
    if done.shared_token:
        name, token_id = one_line(done.shared_token.name), done.shared_token.id
        message = f"Its token {token_id} ({name}) is not for this node alone, and still good. To revoke it:"
        err.print(f"{message} `penstock nodes tokens revoke {token_id}`", soft_wrap=True)


def free(node: NodeId) -> None:
    """Free the name of a disconnected node: the next token that registers a node by this name owns it.

    A name belongs to the token that first used it, until the token is revoked or expires, or you make a token for this
    node alone ([bold]penstock nodes tokens create NAME --node ID[/bold]). The jobs of the disconnected node go to other
    nodes.
    """
    from pipeline.operations import nodes as inference

    ready()
    inference.free(node)
    err.print(f"{node}: free for the next token", soft_wrap=True)


def status(as_json: Json = False) -> None:
    """Show the gateway: its instances, nodes, jobs by state, waiting jobs."""
    from pipeline.operations import nodes as inference

    ready()
    gateway = inference.status()
    if as_json:
        print_json(gateway)
    else:
        _show_status(gateway)


def _show_status(gateway: "GatewayView") -> None:
    def instance(view: "InstanceView") -> str:
        load = f"{count(view.nodes, 'node')}, {count(view.sessions, 'session')}"
        how = load if view.alive else f"[red]gone[/red] {ago(view.last_seen_at)}"
        return f"{one_line(view.instance_id)}: {how}, {count(view.messages, 'message')} to read"

    jobs = "  ".join(f"{state(name)} {number:,}" for name, number in gateway.jobs.items() if number)
    waiting = "  ".join(f"{one_line(pool.rstrip(':'))} {number:,}" for pool, number in gateway.waiting.items())
    letters = f"{gateway.dead_letters:,}; `penstock dlq list` shows them" if gateway.dead_letters else "none"
    print_pairs(
        [
            ("instances", "\n".join(map(instance, gateway.instances)) or "none; `penstock gateway` runs one"),
            ("nodes", "  ".join(f"{name} {number:,}" for name, number in gateway.nodes.items())),
            ("slots", f"{gateway.used:,} of {gateway.slots:,} busy"),
            ("sessions", f"{gateway.sessions:,}"),
            ("jobs", jobs or "none"),
            ("in line", waiting or "none"),
            ("dead letters", letters),
        ]
    )


def _status(node: "NodeView") -> str:
    return f"[{_COLOURS[node.status]}]{node.status}[/{_COLOURS[node.status]}]"
