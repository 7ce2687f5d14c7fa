"""Frames on disk, and a hand that does the workers' part without a model or a broker."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, select

from pipeline.engine.claims import Owner
from pipeline.engine.transaction import Dispatch
from pipeline.flows.screenshots.frames import buffer, intake
from pipeline.flows.screenshots.frames.intake import Frame, Intake
from pipeline.flows.screenshots.graph.nodes import Content
from pipeline.flows.screenshots.rules.expansion import Expansion, PendingEdge, PendingNode
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import AppGuess, SeenScreenshot, VlmIndex
from pipeline.flows.screenshots.states import Ask, NodeKind, Origin, WorkStatus
from pipeline.flows.screenshots.work import analysis, expansion, merge, shard
from pipeline.flows.screenshots.work.message import UsedCall
from pipeline.flows.screenshots.work.shard import ShardUnit
from pipeline.storage.context import Context
from tests.support.frames import noise

BEGIN = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
ME = Owner("here:1:a", "request-1")


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> Dispatch:
    """Collect the launches of transactions instead of sending them."""
    collected = Dispatch()
    monkeypatch.setattr("pipeline.process._launch", lambda _, dispatch: collected.add(dispatch))
    return collected


@dataclass(frozen=True)
class Evidence:
    """A model's text and entities of a frame."""

    ocr_text: str = ""
    snippets: Sequence[str] = ()
    entities: Sequence[str] = ()
    app_guess: str = ""


@dataclass(frozen=True)
class Draft:
    """A test's description of a node. Default `shots`: all of its batch; default `thread`: that of `derived_from` (a
    position among the drafts), or a new thread."""

    kind: str
    content: Content
    at: datetime
    shots: Sequence[int] = ()
    thread: str | None = None
    derived_from: int | None = None


def as_expansion(batch_id: int, shots: Sequence[int], drafts: Sequence[Draft]) -> Expansion:
    """Convert drafts of a batch with these frames to arguments of `expansion.settle`."""
    nodes: list[PendingNode] = []
    edges: list[PendingEdge] = []
    for place, draft in enumerate(drafts):
        content, parent = draft.content, nodes[draft.derived_from] if draft.derived_from is not None else None
        thread = draft.thread or (parent.thread_id if parent else f"thread_{batch_id}_{place}")
        node = PendingNode(
            NodeKind(draft.kind),
            thread,
            content.title,
            content.summary,
            content.keywords,
            content.entities,
            content.importance,
            content.confidence,
            tuple(draft.shots or shots),
            int(draft.at.timestamp() * 1000),
            Origin.MODEL,
            f"ctx_node:{batch_id}:{place}",
        )
        nodes.append(node)
        if parent:
            edges.append(PendingEdge(node.origin_key, parent.origin_key))
    return Expansion(tuple(nodes), tuple(edges))


def as_index(evidence: dict[int, Evidence]) -> VlmIndex:
    """Convert evidence to a model's index without segments."""
    seen = [
        SeenScreenshot(
            screenshot_id=shot,
            ocr_text=read.ocr_text,
            ui_text_snippets=list(read.snippets),
            app_guess=AppGuess(name=read.app_guess) if read.app_guess else None,
        )
        for shot, read in evidence.items()
    ]
    names = [name for read in evidence.values() for name in read.entities]
    return VlmIndex(segments=[], entities=names, screenshots=seen)


@dataclass
class Hand:
    """Ingests, analyses and merges, one call each."""

    context: Context
    folder: Path
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def file(self, text: str = "") -> Path:
        """Draw a picture for a text, unlike the pictures of all other texts."""
        number = next(self.numbers)
        path = self.folder / f"frame-{number}.png"
        noise(text or f"frame {number}").save(path)
        return path

    def add(
        self, text: str = "", *, source: str = "screen:1", ts: datetime | None = None, app: str = "", title: str = ""
    ) -> Intake:
        path = self.file(text)
        at = ts or BEGIN + timedelta(seconds=next(self.numbers))
        return intake.ingest(self.context, path, Frame(source, at, app, title))

    def batch(self, *, source: str = "screen:1", ts: datetime | None = None, app: str = "") -> tuple[int, list[int]]:
        """Make a batch of five new frames; return (its id, the frames' ids)."""
        intakes = [self.add(source=source, ts=ts + timedelta(seconds=i) if ts else None, app=app) for i in range(5)]
        (batch_id,) = buffer.batch(self.context, source)
        return batch_id, [shot.shot_id for shot in intakes if shot.shot_id is not None]

    def settle_shard(self, part: ShardUnit, evidence: dict[int, Evidence] | None = None, model: str = "m") -> bool:
        """Store a shard's result with the evidence of its frames."""
        shots = [shot.id for shot in part.shots.values()]
        index = as_index({shot: read for shot, read in (evidence or {}).items() if shot in shots})
        call = UsedCall(Operation.ANALYSE, "p", model, "hash", part.attempts, Ask.FIRST, shots)
        return shard.settle(self.context, part, index, call).done == 1

    def analyse_shards(self, batch_id: int, evidence: dict[int, Evidence] | None = None) -> None:
        """Analyse all shards of a batch, which then waits for its expansion."""
        assert analysis.claim(self.context, batch_id) is not None
        while part := shard.claim(self.context, batch_id, ME):
            assert self.settle_shard(part, evidence)
        assert analysis.settle(self.context, batch_id).status is WorkStatus.PENDING

    def analyse(self, batch_id: int, drafts: Sequence[Draft], evidence: dict[int, Evidence] | None = None) -> list[int]:
        self.analyse_shards(batch_id, evidence)
        unit = expansion.claim(self.context, batch_id, ME)
        assert unit is not None
        drawn = as_expansion(batch_id, [shot.id for shot in unit.shots], drafts)
        node_ids = expansion.settle(self.context, unit, drawn, Origin.MODEL)
        assert node_ids is not None
        return node_ids

    def merge_all(self, joined: Callable[[Content, Content], Content] | None = None) -> int:
        done = 0
        while unit := merge.claim(self.context, ME):
            merged = (joined or both)(unit.target, unit.content) if unit.target else None
            assert merge.settle(self.context, unit, merged).status is WorkStatus.SUCCEEDED
            done += 1
        return done


def rows_of(context: Context, table: Table) -> list[Any]:
    """Return a table's rows, the newest first."""
    with context.db.read() as session:
        return list(session.execute(select(table).order_by(table.c.id.desc())))


def row_of(context: Context, table: Table, row_id: int) -> Any:
    with context.db.read() as session:
        return session.execute(select(table).where(table.c.id == row_id)).one()


def both(target: Content, new: Content) -> Content:
    return Content(
        f"{target.title} + {new.title}", f"{target.summary} {new.summary}", entities=(*target.entities, *new.entities)
    )


def draft(
    title: str,
    shots: Sequence[int] = (),
    *,
    thread: str | None = None,
    at: datetime = BEGIN,
    kind: str = "event",
    summary: str = "",
    derived_from: int | None = None,
) -> Draft:
    return Draft(kind, Content(title, summary), at, shots, thread, derived_from)


@pytest.fixture
def hand(context: Context, tmp_path: Path) -> Hand:
    return Hand(context, tmp_path)
