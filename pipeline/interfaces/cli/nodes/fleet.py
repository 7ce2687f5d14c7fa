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
    found = inference.node(node)
    if as_json:
        print_json(found)
        return
    offers = [(f"offers {one.capability}", one_line(", ".join(one.models) or "no model")) for one in found.offers]
    took = [(f"{capability} takes", f"{ms:,.0f} ms") for capability, ms in found.latency_ms.items()]
    print_pairs(
        [
            ("node", one_line(f"{found.node_id} {found.name}")),
            ("state", _status(found)),
            ("seen", ago(found.last_seen_at)),
            ("connected", ago(found.connected_at)),
            ("at", one_line(found.instance_id)),
            ("token", one_line(f"{found.token} ({found.token_id})" if found.token else found.token_id)),
            ("software", one_line(found.software)),
            ("busy", f"{found.used} of {count(found.slots, 'slot')}"),
            *offers,
            *took,
            *((f"slot {number}", one) for number, one in enumerate(found.jobs, start=1)),
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
    found = inference.drain(node, reason)
    if as_json:
        print_json(found)
        return
    err.print(f"{found.node_id}: will stop after its {count(len(found.jobs), 'job')}", soft_wrap=True)


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
        said = f"Its token {token_id} ({name}) is not for this node alone, and still good. To revoke it:"
        err.print(f"{said} `penstock nodes tokens revoke {token_id}`", soft_wrap=True)


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
    found = inference.status()
    if as_json:
        print_json(found)
    else:
        _show_status(found)


def _show_status(found: "GatewayView") -> None:
    def instance(one: "InstanceView") -> str:
        here = f"{count(one.nodes, 'node')}, {count(one.sessions, 'session')}"
        how = here if one.alive else f"[red]gone[/red] {ago(one.last_seen_at)}"
        return f"{one_line(one.instance_id)}: {how}, {count(one.messages, 'message')} to read"

    jobs = "  ".join(f"{state(name)} {number:,}" for name, number in found.jobs.items() if number)
    waiting = "  ".join(f"{one_line(pool.rstrip(':'))} {number:,}" for pool, number in found.waiting.items())
    letters = f"{found.dead_letters:,}; `penstock dlq list` shows them" if found.dead_letters else "none"
    print_pairs(
        [
            ("instances", "\n".join(map(instance, found.instances)) or "none; `penstock gateway` runs one"),
            ("nodes", "  ".join(f"{name} {number:,}" for name, number in found.nodes.items())),
            ("slots", f"{found.used:,} of {found.slots:,} busy"),
            ("sessions", f"{found.sessions:,}"),
            ("jobs", jobs or "none"),
            ("in line", waiting or "none"),
            ("dead letters", letters),
        ]
    )


def _status(node: "NodeView") -> str:
    return f"[{_COLOURS[node.status]}]{node.status}[/{_COLOURS[node.status]}]"
