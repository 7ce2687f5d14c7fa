"""`penstock node`: this machine runs jobs for a gateway."""

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from pipeline.interfaces.cli.command import all_settings

if TYPE_CHECKING:
    import ssl

    from pipeline.nodes.client.agent import AgentOptions
    from pipeline.nodes.client.executor import Executor
    from pipeline.nodes.protocol import Capability
    from pipeline.settings import Settings

_LOCAL_SLOTS = 2
_MOST_SLOTS = 1024
_NODE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NEAR = {"localhost", "127.0.0.1", "::1"}
_INTERRUPTED = 130


def node(
    context: typer.Context,
    gateway: Annotated[
        str, typer.Option(metavar="URL", help="ws:// or wss://. The node tries several, separated by commas, in turn.")
    ],
    token: Annotated[
        str, typer.Option(envvar="PENSTOCK_NODE_TOKEN", help="The token that `penstock nodes tokens create` printed.")
    ] = "",
    token_file: Annotated[Path | None, typer.Option(dir_okay=False, help="A file with the token.")] = None,
    provider: Annotated[
        str, typer.Option(help="The provider that does the work: local, or one of the settings.")
    ] = "local",
    slots: Annotated[
        int | None, typer.Option(min=1, max=_MOST_SLOTS, help="Jobs at once. Default: 2; a provider's concurrency.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Offer this model. Repeatable. '*': any.")] = None,
    capability: Annotated[
        list[str] | None, typer.Option(help="Offer only this capability (vision, text, embeddings, page). Repeatable.")
    ] = None,
    name: Annotated[str, typer.Option(help="The node's name for people. Default: the host's name.")] = "",
    node_id: Annotated[str, typer.Option("--id", help="The node's id. Default: one that the data folder keeps.")] = "",
    ca: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="PEM file of the authorities to trust for wss://.")
    ] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for jobs under way when the node stops.")] = 60,
) -> None:
    """Run jobs for a gateway. This machine connects outwards, so it may stand behind NAT or a firewall.

    It needs neither a database nor Redis, only the gateway and a token for nodes: there, [bold]penstock nodes tokens
    create NAME[/bold] makes one. Pass it in PENSTOCK_NODE_TOKEN or --token-file: everybody on this machine can read
    arguments.

    With [bold]--provider local[/bold] the node converts pages (layout, text recognition) and makes word vectors on its
    own cores. With a provider of the settings, such as an Ollama or vLLM on this machine, it offers that one's model
    for pictures, prompts, vectors and pages: [bold]penstock node --gateway wss://gateway.example --token-file
    node.token --provider ollama --slots 4[/bold]. Limits and caps of that provider are not counted here.

    If the connection is lost, jobs continue, and the node keeps trying to reconnect. After Ctrl-C or SIGTERM it
    takes no more jobs, finishes its own (--grace), and stops. A second signal stops it at once.
    """
    from importlib.metadata import version

    from pipeline.engine.logs import configure
    from pipeline.nodes.client.agent import AgentOptions
    from pipeline.nodes.client.link import LinkLimits
    from pipeline.nodes.settings import gateway_settings
    from pipeline.providers.node_executor import ProviderExecutor

    settings = all_settings()
    configure(settings.log_level, as_json=settings.log_json)
    secret = _token(context, token, token_file)
    urls = _urls(gateway)
    executor = ProviderExecutor(settings, provider, models=model or (), capabilities=_capabilities(capability or []))
    sizes = gateway_settings(settings)
    profile = settings.providers.get(provider)
    given_id, trust = _checked_id(node_id), _trust(ca)
    limits = LinkLimits(max_message_bytes=sizes.max_message_bytes, max_attachment_bytes=sizes.max_attachment_bytes)
    options = AgentOptions(
        urls,
        secret,
        given_id or own_id(settings),
        name=(name or socket.gethostname())[:120],
        trust=trust,
        slots=slots or (profile.concurrency if profile else _LOCAL_SLOTS),
        grace_s=grace,
        limits=limits,
        software=f"penstock {version('penstock')}",
    )
    _live(options, executor)


def _live(options: "AgentOptions", executor: "Executor") -> None:
    """Run the node until a signal or the gateway's operator stops it. Ends the process itself, without clean-up, on a
    second signal or if other threads still run."""
    import asyncio
    import os
    import signal
    import sys
    import threading

    from pipeline.interfaces.cli.output import err
    from pipeline.nodes.client.agent import Agent

    def tell(sentence: str) -> None:
        err.print(sentence, soft_wrap=True, markup=False)

    def leave(code: int) -> None:
        # A thread in the middle of a job cannot be stopped, and would block a normal exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    async def live() -> None:
        agent = Agent(options, executor, tell)

        def asked(number: signal.Signals) -> None:
            if agent.bench.closed:
                tell("Stopped at once.")
                leave(_INTERRUPTED)
            agent.drain(number.name)

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, asked, number)
        await agent.run()
        tell("Ended.")
        if threading.active_count() > 1:
            leave(0)

    asyncio.run(live())


def own_id(settings: "Settings") -> str:
    """This node's id: the host's name and a random part, kept in the data folder; the id of another host is replaced.

    The first process on a data folder uses the first id, a second one at the same time the second. Raises `UserError`
    if `_MOST_SLOTS` - 1 processes hold ids.
    """
    from pipeline.standalone.locks import FileLock

    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:40] or "node"
    for number in range(1, _MOST_SLOTS):
        path = settings.data_dir / f"node-{number}.id"
        lock = FileLock(path)
        if not lock.acquire():
            lock.close()
            continue
        # The process holds the lock until it ends.
        known = path.read_text(encoding="utf-8", errors="replace").strip()
        # Another host's id: a copy of the folder came with the system's image.
        if not _NODE_ID.fullmatch(known) or known.rpartition("-")[0] != host:
            known = f"{host}-{uuid4().hex[:8]}"
            path.write_text(f"{known}\n", encoding="utf-8")
        return known
    raise _usage("too many nodes run on this data folder: give each an --id")


def _capabilities(names: list[str]) -> "list[Capability]":
    from pipeline.nodes.protocol import Capability

    if unknown := set(names) - set(Capability):
        raise _usage(f"unknown capability '{min(unknown)}': choose from {', '.join(Capability)}")
    return [Capability(name) for name in names]


def _checked_id(node_id: str) -> str:
    if node_id and not _NODE_ID.fullmatch(node_id):
        raise _usage("a node's id has 1 to 64 characters of A-Z a-z 0-9 _ . -")
    return node_id


def _token(context: typer.Context, token: str, file: Path | None) -> str:
    from pipeline.interfaces.cli.output import err

    source = context.get_parameter_source("token")
    if token and source is not None and source.name == "COMMANDLINE":
        note = "every user of this machine can read arguments: use --token-file or PENSTOCK_NODE_TOKEN instead."
        err.print(f"[yellow]Note:[/yellow] {note}", soft_wrap=True)
    elif file is not None:
        try:
            token = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise _usage(f"{file} cannot be read: {error.strerror}") from error
    token = token.strip()
    if not token:
        raise _usage("a token is needed: --token-file FILE, PENSTOCK_NODE_TOKEN or --token")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise _usage("not a token: it has invalid characters")
    return token


def _urls(gateway: str) -> tuple[str, ...]:
    from urllib.parse import urlsplit

    from pipeline.interfaces.cli.output import err, one_line
    from pipeline.nodes.client.link import endpoints
    from pipeline.nodes.protocol import NODE_PATH

    try:
        urls = endpoints(gateway, NODE_PATH)
    except ValueError as error:
        raise _usage(str(error)) from None
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme == "ws" and parts.hostname not in _NEAR:
            note = f"{one_line(url)} is not encrypted: the network can read token and jobs. See docs/how-to/nodes.md."
            err.print(f"[yellow]Note:[/yellow] {note}", soft_wrap=True)
    return urls


def _trust(ca: Path | None) -> "ssl.SSLContext | None":
    import ssl

    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca))
    except OSError as error:  # ssl.SSLError is one
        raise _usage(f"{ca} is not a PEM file with certificates: {error.strerror or error}") from error


def _usage(message: str) -> Exception:
    from pipeline.engine.errors import UserError

    return UserError(message, code="usage")
