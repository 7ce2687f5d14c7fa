"""A node that answers each prompt with itself and keeps a journal: `python -m tests.support.counting_node`.

It is Penstock's own agent. Each line of its journal is one event: `began PROMPT`, `taken JOB ATTEMPT` for a result that
counted, `late JOB ATTEMPT` for one that did not, `refused JOB ATTEMPT` for a job that found no slot.
"""

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.engine.logs import configure
from pipeline.nodes.client.agent import Agent, AgentOptions
from pipeline.nodes.client.link import BackOff, LinkLimits, endpoints
from pipeline.nodes.protocol import NODE_PATH, Attachment, Capability, Offer

TOKEN = "COUNTING_NODE_TOKEN"


class Journal:
    """A file that receives each line whole and at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Counting:
    """Answers each prompt with itself, after the job's `work_s`."""

    offers: tuple[Offer, ...] = (Offer(capability=Capability.TEXT, models=("m",)),)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def run(
        self,
        capability: Capability,
        model: str,
        body: dict[str, Any],
        attachments: Sequence[tuple[Attachment, bytes]],
        partial: Callable[[str], None],
    ) -> tuple[dict[str, Any], list[tuple[Attachment, bytes]]]:
        self._journal.write("began", body["prompt"])
        time.sleep(body.get("work_s", 0))
        return {"text": body["prompt"]}, list(attachments)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("urls")
    parser.add_argument("node_id")
    parser.add_argument("journal", type=Path)
    parser.add_argument("--slots", type=int, default=4)
    arguments = parser.parse_args()
    configure("INFO", as_json=False)
    options = AgentOptions(
        endpoints(arguments.urls, NODE_PATH),
        os.environ[TOKEN],
        arguments.node_id,
        slots=arguments.slots,
        grace_s=10,
        limits=LinkLimits(open_s=2, ping_s=0.5, silent_s=1.5),
    )
    asyncio.run(_live(options, Journal(arguments.journal)))


async def _live(options: AgentOptions, journal: Journal) -> None:
    agent = Agent(options, Counting(journal), back_off=BackOff(0.05, 0.5))
    received = agent.bench.received

    def journaled(key: tuple[str, int], *, taken: bool) -> None:
        if (finished := agent.bench.results.get(key)) is not None:
            word = "late" if not taken else "taken" if b'"result":' in finished.head else "refused"
            journal.write(word, *key)
        received(key, taken=taken)

    agent.bench.received = journaled  # type: ignore[method-assign]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.drain, "SIGTERM")
    await agent.run()


if __name__ == "__main__":
    main()
