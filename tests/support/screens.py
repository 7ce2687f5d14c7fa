"""Pictures of screens, what models answer about them, and a driver that does the workers' part, message by message."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from PIL import Image, ImageDraw, ImageFont
from sqlalchemy import select, update

from pipeline.engine.claims import Owner
from pipeline.engine.settled import Settled
from pipeline.flows.screenshots.frames import buffer as frame_buffer
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, NODES
from pipeline.flows.screenshots.live_settings import SCREENSHOT_EMBEDDINGS, SCREENSHOT_TEXT, SCREENSHOT_VISION
from pipeline.flows.screenshots.models import BATCHES, SHARDS, SHOTS
from pipeline.flows.screenshots.work import analysis, embedding
from pipeline.flows.screenshots.work.embedding import PORTION
from pipeline.flows.screenshots.work.expansion import ExpandMessage
from pipeline.flows.screenshots.work.merge import MergeMessage
from pipeline.flows.screenshots.work.shard import ShardMessage
from pipeline.providers import gates
from pipeline.storage.context import Context
from tests.support.provider_server import Fault, Record

EMBED = "/v1/embeddings"
MAX_MESSAGES = 50


def picture(text: str) -> bytes:
    """A small screen with a line of text that can be read: a square one, since the engine enlarges the shorter side."""
    image = Image.new("RGB", (320, 320), "white")
    ImageDraw.Draw(image).text((20, 40), text, "black", ImageFont.load_default(36))
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def batch_ready(context: Context) -> list[int]:
    """What `screenshots.batch` does for each source that is ready; the new batches."""
    ready = [one.source for one in frame_buffer.waiting(context) if one.ready]
    return [made for source in ready for made in frame_buffer.batch(context, source)]


def paint(context: Context, shot_ids: Iterable[int], text: str = "Screen") -> None:
    """Frames show a real picture each: `Screen 1` for the first."""
    with context.db.read() as session:
        names = dict(session.execute(select(SHOTS.c.id, SHOTS.c.file)).all())
    for shot_id in shot_ids:
        files.path_of(context.settings, names[shot_id]).write_bytes(picture(f"{text} {shot_id}"))


def told(record: Record) -> dict[str, Any]:
    """The JSON that a call's prompt begins with."""
    content = record.body["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return found


def kind_of(record: Record) -> str:
    """What a call is for: `index`, `expand`, `merge` or `embed`."""
    if record.path == EMBED:
        return "embed"
    asked = told(record)
    return "index" if "screenshots" in asked else "merge" if "existing" in asked else "expand"


def seen(asked: dict[str, Any], title: str = "Writing a test", **segment: Any) -> dict[str, Any]:
    """What a vision model says: one segment over all that it was sent, and a text of each."""
    shots = asked["screenshots"]
    one = {
        "segment_id": "s",
        "screen_ids": [shot["screen_id"] for shot in shots],
        "event": {"title": title, "summary": "In an editor.", "importance": 7, "confidence": 8},
        "merge_hint": {"decision": "NEW"},
        "keywords": ["test"],
    } | segment
    read = [{"screenshot_id": one["screenshot_id"], "ocr_text": f"text {one['screenshot_id']}"} for one in shots]
    return {"segments": [one], "entities": ["Penstock"], "screenshots": read}


def expanded(asked: dict[str, Any]) -> dict[str, Any]:
    """What a text model makes of segments: an event for each, with a plan that is derived from it."""
    ids = {screen["screen_id"]: screen["database_id"] for screen in asked["screenshotMapping"]}
    nodes: list[dict[str, Any]] = []
    edges = []
    for segment in asked["segments"]:
        shots = [ids[screen] for screen in segment["screen_ids"] if screen in ids]
        known = {"thread_id": segment["thread_id"], "screenshot_ids": shots, "summary": "By a model."}
        nodes.append({"kind": "event", "title": f"{segment['event']['title']}, expanded", **known})
        nodes.append({"kind": "plan", "title": f"Go on with {segment['event']['title']}", **known})
        edges.append({"from_index": len(nodes) - 1, "to_index": len(nodes) - 2, "edge_type": "derived_from"})
    return {"nodes": nodes, "edges": edges}


def merged(asked: dict[str, Any]) -> dict[str, Any]:
    """What a text model makes of two nodes."""
    title = f"{asked['existing']['title']} & {asked['new']['title']}"
    return {"title": title, "summary": "Both.", "keywords": ["both"], "entities": [{"name": "Model"}]}


@dataclass
class Models:
    """The rule of a `ProviderServer` that plays all models; each answer is JSON, or raw text."""

    index: Callable[[dict[str, Any]], object] = seen
    expand: Callable[[dict[str, Any]], object] = expanded
    merge: Callable[[dict[str, Any]], object] = merged

    def __call__(self, record: Record) -> Fault | None:
        kind = kind_of(record)
        if kind == "embed":
            return None
        says: Callable[[dict[str, Any]], object] = getattr(self, kind)
        said = says(told(record))
        return (
            said if isinstance(said, Fault) else Fault(status=200, text=said if isinstance(said, str) else _json(said))
        )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def lost_at(module: ModuleType, name: str) -> Iterator[None]:
    """The worker is lost where it would call `module.name`."""

    def die(*_: object, **__: object) -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, name, die)
        with pytest.raises(SystemExit):
            yield


class Driver:
    """Does the workers' part, one message at a time."""

    def __init__(self, context: Context) -> None:
        self.context = context
        gates.sync(context)

    def owner(self, worker: str = "w") -> Owner:
        return Owner(worker, uuid4().hex)

    def analyse(self, batch_id: int, queue: str = SCREENSHOT_VISION) -> Settled:
        """A message for a shard."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        with ShardMessage(self.context, batch_id, queue, self.owner(), guarded) as message:
            return message.run()

    def look_at(self, batch_id: int, queue: str = SCREENSHOT_VISION) -> Settled:
        """Handle all messages for a batch's shards, each until it ends, and the merge after them."""
        begun = analysis.claim(self.context, batch_id)
        assert begun is not None, "the batch is not due"
        for _ in range(begun.due):
            for _ in range(MAX_MESSAGES):
                if not self.analyse(batch_id, queue).requeue:
                    break
        return analysis.settle(self.context, batch_id)

    def expand(self, batch_id: int, queue: str = SCREENSHOT_TEXT) -> Settled:
        """A message that makes nodes of a batch."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        with ExpandMessage(self.context, batch_id, queue, self.owner(), guarded) as message:
            return message.run()

    def join(self, queue: str = SCREENSHOT_TEXT, *, alone: bool = False) -> Settled:
        """A message that merges nodes."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        with MergeMessage(self.context, queue, self.owner(), guarded) as message:
            return message.run(alone=alone)

    def embed(self, portion: int = PORTION, queue: str = SCREENSHOT_EMBEDDINGS) -> Settled:
        """A message that makes vectors."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        return embedding.embed(self.context, self.owner(), guarded, portion)

    def skip_waits(self) -> None:
        """End every wait."""
        with self.context.db.transaction() as session:
            for table in (BATCHES, SHARDS, NODES, EMBEDDINGS):
                session.execute(update(table).values(next_run_at=None))
