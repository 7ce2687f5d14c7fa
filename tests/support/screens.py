"""Pictures of screens, the models' answers about them, and a driver that does the workers' part, message by message."""

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
    """Return a small screen with a legible line of text: a square one, since the engine enlarges the shorter side."""
    image = Image.new("RGB", (320, 320), "white")
    ImageDraw.Draw(image).text((20, 40), text, "black", ImageFont.load_default(36))
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def batch_ready(context: Context) -> list[int]:
    """Do the work of `screenshots.batch` for each source that is ready. Returns the ids of the new batches."""
    ready = [frames.source for frames in frame_buffer.waiting(context) if frames.ready]
    return [batch_id for source in ready for batch_id in frame_buffer.batch(context, source)]


def paint(context: Context, shot_ids: Iterable[int], text: str = "Screen") -> None:
    """Give each frame a real picture: `Screen 1` for the first."""
    with context.db.read() as session:
        names = dict(session.execute(select(SHOTS.c.id, SHOTS.c.file)).all())
    for shot_id in shot_ids:
        files.path_of(context.settings, names[shot_id]).write_bytes(picture(f"{text} {shot_id}"))


def prompt_of(record: Record) -> dict[str, Any]:
    """Return the JSON at the start of a call's prompt."""
    content = record.body["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    prompt: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return prompt


def kind_of(record: Record) -> str:
    """Return the purpose of a call: `index`, `expand`, `merge` or `embed`."""
    if record.path == EMBED:
        return "embed"
    prompt = prompt_of(record)
    return "index" if "screenshots" in prompt else "merge" if "existing" in prompt else "expand"


def index_reply(prompt: dict[str, Any], title: str = "Writing a test", **segment: Any) -> dict[str, Any]:
    """Return a vision model's reply: one segment over all its screenshots, and a text of each."""
    shots = prompt["screenshots"]
    first = {
        "segment_id": "s",
        "screen_ids": [shot["screen_id"] for shot in shots],
        "event": {"title": title, "summary": "In an editor.", "importance": 7, "confidence": 8},
        "merge_hint": {"decision": "NEW"},
        "keywords": ["test"],
    } | segment
    read = [{"screenshot_id": shot["screenshot_id"], "ocr_text": f"text {shot['screenshot_id']}"} for shot in shots]
    return {"segments": [first], "entities": ["Penstock"], "screenshots": read}


def expand_reply(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return a text model's reply about segments: an event for each, with a plan derived from it."""
    ids = {screen["screen_id"]: screen["database_id"] for screen in prompt["screenshotMapping"]}
    nodes: list[dict[str, Any]] = []
    edges = []
    for segment in prompt["segments"]:
        shots = [ids[screen] for screen in segment["screen_ids"] if screen in ids]
        known = {"thread_id": segment["thread_id"], "screenshot_ids": shots, "summary": "By a model."}
        nodes.append({"kind": "event", "title": f"{segment['event']['title']}, expanded", **known})
        nodes.append({"kind": "plan", "title": f"Go on with {segment['event']['title']}", **known})
        edges.append({"from_index": len(nodes) - 1, "to_index": len(nodes) - 2, "edge_type": "derived_from"})
    return {"nodes": nodes, "edges": edges}


def merge_reply(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return a text model's reply about two nodes."""
    title = f"{prompt['existing']['title']} & {prompt['new']['title']}"
    return {"title": title, "summary": "Both.", "keywords": ["both"], "entities": [{"name": "Model"}]}


@dataclass
class Models:
    """The rule of a `ProviderServer` that plays all models; each answer is JSON, or raw text."""

    index: Callable[[dict[str, Any]], object] = index_reply
    expand: Callable[[dict[str, Any]], object] = expand_reply
    merge: Callable[[dict[str, Any]], object] = merge_reply

    def __call__(self, record: Record) -> Fault | None:
        kind = kind_of(record)
        if kind == "embed":
            return None
        says: Callable[[dict[str, Any]], object] = getattr(self, kind)
        answer = says(prompt_of(record))
        if isinstance(answer, Fault):
            return answer
        return Fault(status=200, text=answer if isinstance(answer, str) else _json(answer))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def lost_at(module: ModuleType, name: str) -> Iterator[None]:
    """End the worker where it would call `module.name`."""

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
        """Handle a message for a shard."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        with ShardMessage(self.context, batch_id, queue, self.owner(), guarded) as message:
            return message.run()

    def analyse_all(self, batch_id: int, queue: str = SCREENSHOT_VISION) -> Settled:
        """Handle all messages for a batch's shards, each until it ends, and the merge after them."""
        batch = analysis.claim(self.context, batch_id)
        assert batch is not None, "the batch is not due"
        for _ in range(batch.due):
            for _ in range(MAX_MESSAGES):
                if not self.analyse(batch_id, queue).requeue:
                    break
        return analysis.settle(self.context, batch_id)

    def expand(self, batch_id: int, queue: str = SCREENSHOT_TEXT) -> Settled:
        """Handle a message that makes nodes of a batch."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        with ExpandMessage(self.context, batch_id, queue, self.owner(), guarded) as message:
            return message.run()

    def join(self, queue: str = SCREENSHOT_TEXT, *, alone: bool = False) -> Settled:
        """Handle a message that merges nodes."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        with MergeMessage(self.context, queue, self.owner(), guarded) as message:
            return message.run(alone=alone)

    def embed(self, portion: int = PORTION, queue: str = SCREENSHOT_EMBEDDINGS) -> Settled:
        """Handle a message that makes vectors."""
        guarded = gates.guarded_call(self.context, queue, uuid4().hex)
        return embedding.embed(self.context, self.owner(), guarded, portion)

    def skip_waits(self) -> None:
        """End every wait."""
        with self.context.db.transaction() as session:
            for table in (BATCHES, SHARDS, NODES, EMBEDDINGS):
                session.execute(update(table).values(next_run_at=None))
