"""Nodes of the screenshots flow as the API shows them: one by one, as hits, and on the timeline."""

from datetime import datetime

from pydantic import Field, JsonValue

from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.states import Ask, NodeKind, Origin
from pipeline.interfaces.http.shapes import Shape, example
from pipeline.interfaces.rest.screenshot_shapes import ScreenshotShape
from tasks.screenshots import WorkStatus

NODE: dict[str, JsonValue] = {
    "id": 12,
    "kind": "event",
    "thread_id": "thread_4_0",
    "title": "Invoice for March",
    "summary": "Checked the sums.",
    "keywords": ["invoice"],
    "entities": [{"name": "ACME"}],
    "importance": 6,
    "confidence": 8,
    "event_time": "2026-11-22T10:00:00Z",
    "made_by": "model",
    "batch_id": 4,
    "status": "succeeded",
    "error": None,
    "merged_into_id": None,
    "merged_from_ids": [],
    "created_at": "2026-11-22T10:01:00Z",
    "updated_at": "2026-11-22T10:01:30Z",
}


class NodeShape(Shape):
    """Something that was understood."""

    model_config = example(**NODE)
    id: int
    kind: NodeKind
    thread_id: str | None
    title: str
    summary: str
    keywords: list[str]
    entities: list[dict[str, JsonValue]]
    importance: int
    confidence: int
    event_time: datetime
    made_by: Origin
    batch_id: int | None
    status: WorkStatus = Field(description="Of its merge.")
    error: str | None
    merged_into_id: int | None = Field(description="The node that says it now.")
    merged_from_ids: list[int]
    created_at: datetime
    updated_at: datetime


class ThreadShape(Shape):
    """A course of activity."""

    id: str
    title: str
    first_at: datetime
    last_at: datetime


class EdgeShape(Shape):
    """How two nodes relate."""

    from_id: int
    to_id: int
    type: str


class NodeOriginShape(Shape):
    """How a node came to say what it says."""

    act: str = Field(description="`made` or `merged`.")
    from_node_id: int | None
    batch_id: int | None
    method: Origin
    model: str
    created_at: datetime


class NodeCallShape(Shape):
    """A call to a model that a node rests on."""

    id: int
    operation: Operation
    provider: str
    model: str
    prompt_hash: str
    attempt: int
    screenshot_ids: list[int]
    ask: Ask


class NodeDetailShape(Shape):
    """A node with what it rests on."""

    model_config = example(
        asked_id=12,
        node=NODE,
        vector="succeeded",
        vector_error=None,
        thread=None,
        screenshots=[],
        provenance=[],
        calls=[],
        edges=[],
        merged=[],
    )
    asked_id: int = Field(description="Differs from the node's id if what was asked for went into it.")
    node: NodeShape
    vector: WorkStatus | None
    vector_error: str | None
    thread: ThreadShape | None
    screenshots: list[ScreenshotShape]
    provenance: list[NodeOriginShape]
    calls: list[NodeCallShape]
    edges: list[EdgeShape]
    merged: list[NodeShape]


class NodeHitShape(Shape):
    """A node that a search found; ranks are from 1, null: not found that way."""

    node: NodeShape
    score: float
    text_rank: int | None
    vector_rank: int | None
    apps: list[str]
    shot_id: int | None = Field(description="A frame on which one of the words was read.")
    excerpt: str = Field(description="The text around it.")


class IndexedShape(Shape):
    """How much is indexed."""

    done: int
    waiting: int
    failed: int


class FoundNodesShape(Shape):
    """Hits, best first, beside how much is indexed."""

    model_config = example(
        hits=[
            {
                "node": NODE,
                "score": 0.03226,
                "text_rank": 1,
                "vector_rank": 2,
                "apps": ["Firefox"],
                "shot_id": 40,
                "excerpt": "… Invoice 17 of March …",
            }
        ],
        screenshots={"done": 40, "waiting": 0, "failed": 0},
        vectors={"done": 12, "waiting": 0, "failed": 0},
        lexical=False,
        note="",
    )
    hits: list[NodeHitShape]
    screenshots: IndexedShape
    vectors: IndexedShape
    lexical: bool = Field(description="No provider of embeddings is configured, so meaning is not known.")
    note: str = Field(description="Why only words were looked for, although meaning should have been.")


class TimelineHourShape(Shape):
    """What happened in one hour of one thread, in its order. A page of the timeline may begin in the middle of one."""

    model_config = example(
        begins_at="2026-11-22T11:00:00+01:00", thread_id="thread_4_0", thread_title="Invoices", nodes=[NODE]
    )
    begins_at: datetime = Field(description="In the configured zone.")
    thread_id: str | None
    thread_title: str
    nodes: list[NodeShape]
