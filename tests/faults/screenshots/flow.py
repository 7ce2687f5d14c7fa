"""The screenshots flow for fault tests: adds frames, reads rows and checks promises."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from sqlalchemy import select

from pipeline.flows.screenshots import plan
from pipeline.flows.screenshots.frames import intake
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.graph.models import LINKS, NODES, PROVENANCE
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.scopes import Scope
from pipeline.storage.context import Context
from tasks.screenshots import canvas
from tests.support.provider_server import ProviderServer
from tests.support.screens import Driver
from tests.support.screenshot_model import calls_by_operation, frame_bytes, titles_in_runs
from tests.support.waiting import wait_until

DONE_S = 180
"""The time limit of frames, with recovery, on a busy machine."""
START_S = 120
BEGIN = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Shots:
    """Acts of a test on frames, their rows and the provider."""

    context: Context
    provider: ProviderServer
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def add(self, amount: int = 10, *, source: str = "screen:1", titles: Sequence[str] = ()) -> list[int]:
        """Add frames like a capturing program, five of each title, without messages; return their ids."""
        shot_ids = []
        for title in titles or titles_in_runs(amount, 5):
            number = next(self.numbers)
            frame = Frame(source, BEGIN + timedelta(seconds=number), "Editor", title)
            ingested = intake.ingest(self.context, frame_bytes(number), frame)
            assert ingested.shot_id is not None, ingested
            shot_ids.append(ingested.shot_id)
        return shot_ids

    def submit(self, amount: int = 10, **options: Any) -> list[int]:
        """Add frames and launch their batches; return their ids."""
        shot_ids = self.add(amount, **options)
        self.launch()
        return shot_ids

    def launch(self) -> None:
        """Launch all waiting work."""
        canvas.TASKS.launch(*plan.ready_buffers(self.context), Scope.BATCHES)

    def rows(self, table: Any) -> list[Any]:
        with self.context.db.read() as session:
            return list(session.execute(select(table).order_by(*table.primary_key.columns)))

    def states(self, table: Any) -> dict[str, int]:
        """Count rows by state."""
        return dict(Counter(row.status for row in self.rows(table)))

    def wait_for(self, operation: Operation, calls: int = 1) -> None:
        """Wait until the provider has received this many calls of the operation."""
        seen = self.provider.wait_for(lambda: self.calls(operation) >= calls, START_S)
        assert seen, f"only {self.describe()}"

    def calls(self, operation: Operation) -> int:
        return calls_by_operation(self.provider).get(operation, 0)

    def skip_waits(self) -> None:
        """End all waits."""
        Driver(self.context).skip_waits()

    def assert_finished(self) -> None:
        assert self._finished(), self.describe()

    def finish(self, within_s: float = DONE_S) -> None:
        """Wait until no frame waits, every batch has succeeded and every node is merged."""
        wait_until(
            self._finished, within_s, "all batches have become nodes, and all nodes are merged", last=self.describe
        )

    def finish_batches(self) -> None:
        """Wait until every batch has succeeded, with or without nodes, and no frame waits for one.

        If adding frames takes longer than a batch waits for them, there are more batches.
        """
        wait_until(
            lambda: set(self.states(BATCHES)) == {"succeeded"} and "pending" not in self.states(SHOTS),
            DONE_S,
            "batches have ended",
            last=self.describe,
        )

    def _finished(self) -> bool:
        done = all((counts := self.states(table)) and set(counts) == {"succeeded"} for table in (BATCHES, NODES))
        return done and "pending" not in self.states(SHOTS)

    def describe(self) -> object:
        """Describe the state for the report of a failed test."""
        rows = {table.name: self.states(table) for table in (SHOTS, BATCHES, SHARDS, NODES)}
        errors = [row.error for table in (BATCHES, SHARDS, NODES) for row in self.rows(table) if row.error]
        return rows, calls_by_operation(self.provider), self.provider.counts, errors

    def assert_once(self, shot_ids: Sequence[int]) -> None:
        """Check that each frame is done and behind one event, and that each merge went in once and whole."""
        shots = {row.id: row.status for row in self.rows(SHOTS)}
        assert {shot_id: shots[shot_id] for shot_id in shot_ids} == dict.fromkeys(shot_ids, "succeeded")
        nodes = self.rows(NODES)
        events = [node for node in nodes if node.kind == "event"]
        origins = Counter(link.shot_id for link in self.rows(LINKS))
        assert origins == dict.fromkeys(shot_ids, 1), "each frame is behind exactly one event"
        assert len({node.origin_key for node in nodes}) == len(nodes)
        created = Counter(row.node_id for row in self.rows(PROVENANCE) if row.act == "made")
        assert created == {node.id: 1 for node in nodes}
        self._assert_merged_once(events)

    def _assert_merged_once(self, events: Sequence[Any]) -> None:
        merged = Counter(row.from_node_id for row in self.rows(PROVENANCE) if row.act == "merged")
        assert merged == {node.id: 1 for node in events if node.merged_into_id}
        targets = {node.id: node for node in events if node.merged_into_id is None}
        for node in targets.values():
            # Summaries name frames, so a lost merge would lack a name.
            parts = [other for other in events if other.merged_into_id == node.id]
            expected = {word for part in (node, *parts) for word in json.loads(part.own)["summary"].split()}
            assert set(node.summary.split()) == expected, (node.summary, expected)

    def merged(self) -> int:
        """Count the nodes that were merged into another."""
        return sum(row.act == "merged" for row in self.rows(PROVENANCE))

    def assert_paid_once(self, *, repeated: int = 0) -> None:
        """Check that each stored result cost one call, with at most `repeated` more calls, under way at the fault."""
        merged = [row for row in self.rows(PROVENANCE) if row.act == "merged" and row.method == "model"]
        needed = {
            Operation.ANALYSE: len(self.rows(SHARDS)),
            Operation.EXPAND: sum(row.made_by == "model" for row in self.rows(BATCHES)),
            Operation.MERGE: len(merged),
        }
        more = {operation: self.calls(operation) - stored for operation, stored in needed.items()}
        assert min(more.values()) >= 0, more
        assert sum(more.values()) <= repeated, (more, self.describe())
