"""Nodes that answer at once, many in one process; or, with `--streams`, the other end of bare Redis Streams."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import cast

from pipeline.engine.connection import connect_async
from pipeline.nodes.client.link import BackOff, Link, LinkFailed, LinkLimits, endpoints, open_link
from pipeline.nodes.protocol import (
    NODE_PATH,
    BadMessage,
    Capability,
    JobAck,
    JobAssign,
    JobStarted,
    NodeHeartbeat,
    NodeRegister,
    NodeResult,
    NodeWelcome,
    Offer,
    ToNode,
    to_node,
)

Entries = Sequence[tuple[bytes, Sequence[tuple[bytes, dict[bytes, bytes]]]]]
"""Entries read from streams, by stream name. The client's types allow for other forms."""


async def node(urls: tuple[str, ...], node_id: str, slots: int, secret: str) -> None:
    """Run one node until the process ends."""
    back_off = BackOff()
    turn = 0
    while True:
        try:
            async with open_link(urls[turn % len(urls)], secret, to_node, LinkLimits()) as link:
                back_off.reset()
                await _serve(link, node_id, slots)
        except (LinkFailed, BadMessage, OSError):
            turn += 1
            await asyncio.sleep(back_off.next_s())


async def _serve(link: "Link[ToNode]", node_id: str, slots: int) -> None:
    offers = (Offer(capability=Capability.TEXT, models=("m",)),)
    await link.send(NodeRegister(node_id=node_id, slots=slots, offers=offers))
    beats: asyncio.Task[None] | None = None
    try:
        while True:
            message, _ = await link.receive()
            if isinstance(message, NodeWelcome):
                beats = asyncio.create_task(_beat(link, message.heartbeat_ms / 1000))
            elif isinstance(message, JobAssign):
                job = {"job_id": message.job_id, "attempt": message.attempt}
                await link.send(JobAck(**job))
                await link.send(JobStarted(**job))
                await link.send(NodeResult(**job, result={"text": ""}))
    finally:
        if beats:
            beats.cancel()


async def _beat(link: "Link[ToNode]", every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await link.send(NodeHeartbeat())


async def nodes(urls: str, name: str, number: int, slots: int) -> None:
    """Run all nodes."""
    secret = os.environ["PENSTOCK_NODE_TOKEN"]
    addresses = endpoints(urls, NODE_PATH)
    await asyncio.gather(*(node(addresses, f"{name}-{each}", slots, secret) for each in range(number)))


async def streams(url: str) -> None:
    """Answer each entry of `requests` with an entry of `answers`."""
    redis = connect_async(url)
    await redis.xgroup_create("requests", "workers", "0", mkstream=True)
    while True:
        batch = await redis.xreadgroup("workers", "one", {"requests": ">"}, count=64, block=1000)
        for _, entries in cast("Entries", batch or []):
            pipe = redis.pipeline(transaction=False)
            for entry, fields in entries:
                pipe.xadd("answers", {"id": fields[b"id"]}, maxlen=10_000)
                pipe.xack("requests", "workers", entry)
                pipe.xdel("requests", entry)
            await pipe.execute()


if __name__ == "__main__":
    if sys.argv[1] == "--streams":
        asyncio.run(streams(sys.argv[2]))
    else:
        asyncio.run(nodes(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
