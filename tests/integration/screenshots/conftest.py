"""Frames on disk, and a hand that does the workers' part: no model, no broker."""

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
from pipeline.flows.screenshots.frames.intake import Frame, Taken
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
    """What transactions have asked for after their commits: none of it is sent."""
    asked = Dispatch()
    monkeypatch.setattr("pipeline.process._launch", lambda _, dispatch: asked.add(dispatch))
    return asked


@dataclass(frozen=True)
class Evidence:
    """What a model read on a frame."""

    ocr_text: str = ""
    snippets: Sequence[str] = ()
    entities: Sequence[str] = ()
    app_guess: str = ""


@dataclass(frozen=True)
class Draft:
    """A node as a test describes it. No `shots`: all of its batch. No `thread`: that of what it is `derived_from` (a
    place among the drafts), or a new one."""

    kind: str
    content: Content
    at: datetime
    shots: Sequence[int] = ()
    thread: str | None = None
    derived_from: int | None = None


def as_expansion(batch_id: int, shots: Sequence[int], drafts: Sequence[Draft]) -> Expansion:
    """Drafts of a batch with these frames as what `expansion.settle` takes."""
    nodes: list[PendingNode] = []
    edges: list[PendingEdge] = []
    for place, draft in enumerate(drafts):
        said, parent = draft.content, nodes[draft.derived_from] if draft.derived_from is not None else None
        thread = draft.thread or (parent.thread_id if parent else f"thread_{batch_id}_{place}")
        node = PendingNode(
            NodeKind(draft.kind),
            thread,
            said.title,
            said.summary,
            said.keywords,
            said.entities,
            said.importance,
            said.confidence,
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
    """What was read on frames, as a model says it: no segments."""
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
    """Captures, analyses and merges, one call each."""

    context: Context
    folder: Path
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def file(self, text: str = "") -> Path:
        """A picture of its own for each text, far from every other text's."""
        number = next(self.numbers)
        path = self.folder / f"frame-{number}.png"
        noise(text or f"frame {number}").save(path)
        return path

    def add(
        self, text: str = "", *, source: str = "screen:1", ts: datetime | None = None, app: str = "", title: str = ""
    ) -> Taken:
        path = self.file(text)
        at = ts or BEGIN + timedelta(seconds=next(self.numbers))
        return intake.ingest(self.context, path, Frame(source, at, app, title))

    def batch(self, *, source: str = "screen:1", ts: datetime | None = None, app: str = "") -> tuple[int, list[int]]:
        """(a batch of five new frames, their ids)."""
        taken = [self.add(source=source, ts=ts + timedelta(seconds=i) if ts else None, app=app) for i in range(5)]
        (made,) = buffer.batch(self.context, source)
        return made, [shot.shot_id for shot in taken if shot.shot_id is not None]

    def look(self, part: ShardUnit, evidence: dict[int, Evidence] | None = None, model: str = "m") -> bool:
        """A shard's result is stored: what was read on those of its frames that there is evidence of."""
        shots = [shot.id for shot in part.shots.values()]
        index = as_index({shot: read for shot, read in (evidence or {}).items() if shot in shots})
        call = UsedCall(Operation.ANALYSE, "p", model, "hash", part.attempts, Ask.FIRST, shots)
        return shard.settle(self.context, part, index, call).done == 1

    def look_at_all(self, batch_id: int, evidence: dict[int, Evidence] | None = None) -> None:
        """The batch is analysed, and waits to become nodes."""
        assert analysis.claim(self.context, batch_id) is not None
        while part := shard.claim(self.context, batch_id, ME):
            assert self.look(part, evidence)
        assert analysis.settle(self.context, batch_id).status is WorkStatus.PENDING

    def analyse(self, batch_id: int, drafts: Sequence[Draft], evidence: dict[int, Evidence] | None = None) -> list[int]:
        self.look_at_all(batch_id, evidence)
        unit = expansion.claim(self.context, batch_id, ME)
        assert unit is not None
        drawn = as_expansion(batch_id, [shot.id for shot in unit.shots], drafts)
        made = expansion.settle(self.context, unit, drawn, Origin.MODEL)
        assert made is not None
        return made

    def merge_all(self, joined: Callable[[Content, Content], Content] | None = None) -> int:
        done = 0
        while unit := merge.claim(self.context, ME):
            merged = (joined or both)(unit.target, unit.content) if unit.target else None
            assert merge.settle(self.context, unit, merged).status is WorkStatus.SUCCEEDED
            done += 1
        return done


def rows_of(context: Context, table: Table) -> list[Any]:
    """A table's rows, the newest first."""
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
