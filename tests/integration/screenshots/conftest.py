"""Frames on disk, and a hand that does the workers' part: no model, no broker."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.engine.claims import Owner
from pipeline.screenshots import shards, working
from pipeline.screenshots.frames import ingest
from pipeline.screenshots.frames.ingest import Frame, Taken
from pipeline.screenshots.graph import merges
from pipeline.screenshots.graph.nodes import Content, Draft
from pipeline.screenshots.working import Evidence
from pipeline.storage.context import Context
from tests.support.frames import noise

BEGIN = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
ME = Owner("here:1:a", "request-1")


@dataclass
class Hand:
    """Captures, analyses and merges, one call each."""

    context: Context
    folder: Path
    numbers: itertools.count = field(default_factory=itertools.count)  # type: ignore[type-arg]

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
        return ingest.ingest(self.context, path, Frame(source, at, app, title))

    def batch(self, *, source: str = "screen:1", ts: datetime | None = None, app: str = "") -> tuple[int, list[int]]:
        """(a batch of five new frames, their ids)."""
        taken = [self.add(source=source, ts=ts + timedelta(seconds=i) if ts else None, app=app) for i in range(5)]
        return taken[-1].batches[0], [shot.shot_id for shot in taken if shot.shot_id is not None]

    def analyse(self, batch_id: int, drafts: Sequence[Draft], evidence: dict[int, Evidence] | None = None) -> list[int]:
        unit = working.begin(self.context, ME, batch_id=batch_id)
        assert unit is not None
        while shard := shards.claim(self.context, batch_id, ME):
            assert shards.done(self.context, shard, "{}", "m")
        assert shards.settle(self.context, batch_id) == "succeeded"
        resumed = working.resume(self.context, batch_id, ME)
        assert resumed is not None
        made = working.finish(self.context, resumed, evidence or {}, drafts)
        assert made is not None
        return made

    def merge_all(self, joined: Callable[[Content, Content], Content] | None = None) -> int:
        done = 0
        while unit := merges.claim(self.context, ME):
            merged = (joined or both)(unit.target, unit.content) if unit.target else None
            assert merges.commit(self.context, unit, merged) is merges.Merged.DONE
            done += 1
        return done


def both(target: Content, new: Content) -> Content:
    return Content(
        f"{target.title} + {new.title}", f"{target.summary} {new.summary}", entities=(*target.entities, *new.entities)
    )


def draft(
    title: str, shots: Sequence[int] = (), *, thread: str | None = None, at: datetime = BEGIN, kind: str = "event",
    summary: str = "", derived_from: int | None = None,
) -> Draft:  # fmt: skip
    return Draft(kind, Content(title, summary), at, shots, thread, derived_from)


@pytest.fixture
def hand(context: Context, tmp_path: Path) -> Hand:
    return Hand(context, tmp_path)
