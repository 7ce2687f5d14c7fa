"""Tables of the graph: threads, nodes, their frames, entities, edges and provenance.

Rules: docs/sources/screenshots.md#nodes.
"""

from datetime import datetime

from sqlalchemy import Float, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.tables import Base, RowId, UtcDateTime, table_of
from pipeline.flows.screenshots.states import CLAIMABLE, Origin, WorkStatus


class Thread(Base):
    """An activity that nodes belong to. Its row is the lock for merges of its nodes."""

    __tablename__ = "screenshot_threads"
    __table_args__ = (Index("ix_screenshot_threads_last_at", "last_at"),)

    id: Mapped[str] = mapped_column(String(60), primary_key=True)
    title: Mapped[str] = mapped_column(String(200), default="")
    first_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Node(ClaimColumns, Base):
    """An event that a model or rules derived from frames; or knowledge, a state, a procedure or a plan from an event.

    Workers claim it for its merge; `status` is its mergeStatus. A node merged into another stays with its own text, so
    that deleting the frames of one can undo the merge.
    """

    __tablename__ = "screenshot_nodes"
    __table_args__ = (
        UniqueConstraint("origin_key"),
        Index("ix_screenshot_nodes_thread", "thread_id", "kind", "status"),
        Index("ix_screenshot_nodes_status", "status"),
        Index("ix_screenshot_nodes_event_time", "event_time"),
        Index("ix_screenshot_nodes_merged_into_id_event_time", "merged_into_id", "event_time"),
        claimable_index("screenshot_nodes", "event_time", "id", states=CLAIMABLE),
        claims_index("screenshot_nodes"),
        waits_index("screenshot_nodes"),
        Index("ix_screenshot_nodes_batch_id", "batch_id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    thread_id: Mapped[str | None] = mapped_column(ForeignKey("screenshot_threads.id", ondelete="SET NULL"))
    origin_key: Mapped[str] = mapped_column(String(255))
    """`ctx_node:…`: writing the same finding twice makes one node."""
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_batches.id", ondelete="SET NULL"))
    title: Mapped[str] = mapped_column(String(200))
    summary: Mapped[str] = mapped_column(Text, default="")
    keywords: Mapped[str] = mapped_column(Text, default="[]")
    entities: Mapped[str] = mapped_column(Text, default="[]")
    """JSON list of {name, entityType, confidence}."""
    importance: Mapped[int] = mapped_column(default=5)
    confidence: Mapped[int] = mapped_column(default=5)
    event_time: Mapped[datetime] = mapped_column(UtcDateTime)
    made_by: Mapped[str] = mapped_column(String(10), default=Origin.MODEL.value)
    """`model`, `direct` or `rules`."""
    own: Mapped[str] = mapped_column(Text)
    """JSON of title, summary, keywords, entities, importance and confidence before any merge."""
    version: Mapped[int] = mapped_column(default=1)
    """Counts changes of the text; merges of an older version are discarded."""
    status: Mapped[str] = mapped_column(String(20), default=WorkStatus.PENDING.value)
    error: Mapped[str | None] = mapped_column(Text)
    merged_into_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="SET NULL"))
    """The node that it was merged into; None: it is not merged."""
    merged_from_ids: Mapped[str] = mapped_column(Text, default="[]")
    """JSON list of all nodes merged into this one, directly or through others."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Embedding(ClaimColumns, Base):
    """The request for a node's vector. A node merged into another has none.

    A separate row, so that workers can claim it while another claims the node for a merge. A change of the node's text
    reopens the request and ends its claim, which discards a vector of the older text.
    """

    __tablename__ = "screenshot_embeddings"
    __table_args__ = (
        Index("ix_screenshot_embeddings_status", "status"),
        claimable_index("screenshot_embeddings", "id", states=CLAIMABLE),
        claims_index("screenshot_embeddings"),
        waits_index("screenshot_embeddings"),
    )

    id: Mapped[int] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"), primary_key=True)
    """The node's id."""
    status: Mapped[str] = mapped_column(String(20), default=WorkStatus.PENDING.value)
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Link(Base):
    """A frame that a node rests on. A merge changes `node_id`; `origin_id` stays, so that undoing it can restore it."""

    __tablename__ = "screenshot_links"
    __table_args__ = (
        Index("ix_screenshot_links_node_id", "node_id"),
        Index("ix_screenshot_links_shot_id", "shot_id"),
    )

    origin_id: Mapped[int] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"), primary_key=True)
    shot_id: Mapped[int] = mapped_column(ForeignKey("screenshots.id", ondelete="CASCADE"), primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"))


class Entity(Base):
    """A recognised name: a person, a project, a file."""

    __tablename__ = "screenshot_entities"
    __table_args__ = (UniqueConstraint("name_key", "type"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    name_key: Mapped[str] = mapped_column(String(200))
    """Normal form (NFKC, case folded), which all spellings of a name share."""
    type: Mapped[str] = mapped_column(String(40), default="")
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Mention(Base):
    """A node mentions an entity."""

    __tablename__ = "screenshot_mentions"
    __table_args__ = (Index("ix_screenshot_mentions_entity_id", "entity_id"),)

    node_id: Mapped[int] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"), primary_key=True)
    entity_id: Mapped[int] = mapped_column(ForeignKey("screenshot_entities.id", ondelete="CASCADE"), primary_key=True)
    confidence: Mapped[float] = mapped_column(Float, default=0.0)


class Edge(Base):
    """A relation between two nodes, such as `derived_from`."""

    __tablename__ = "screenshot_edges"
    __table_args__ = (Index("ix_screenshot_edges_to_id", "to_id"),)

    from_id: Mapped[int] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"), primary_key=True)
    to_id: Mapped[int] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"), primary_key=True)
    type: Mapped[str] = mapped_column(String(40), primary_key=True)


class Provenance(Base):
    """The origin of a node's text: one row for its creation and one for each merge into it."""

    __tablename__ = "screenshot_provenance"
    __table_args__ = (
        # Repeating a merge adds no second row.
        UniqueConstraint("node_id", "act", "from_node_id"),
        Index("ix_screenshot_provenance_from_node_id", "from_node_id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"))
    act: Mapped[str] = mapped_column(String(20))
    """`made` or `merged`."""
    from_node_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"))
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_batches.id", ondelete="SET NULL"), index=True)
    method: Mapped[str] = mapped_column(String(20), default="model")
    """The origin of the text or merge: `model`, `direct` or `rules`."""
    model: Mapped[str] = mapped_column(String(120), default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Call(Base):
    """A call whose result a node rests on. The transaction that stores the result writes it."""

    __tablename__ = "screenshot_calls"
    __table_args__ = (
        Index("ix_screenshot_calls_batch_id", "batch_id"),
        Index("ix_screenshot_calls_node_id", "node_id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_batches.id", ondelete="CASCADE"))
    node_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_nodes.id", ondelete="CASCADE"))
    """The target of a merge."""
    operation: Mapped[str] = mapped_column(String(30))
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120))
    prompt_hash: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int]
    ask: Mapped[str] = mapped_column(String(10))
    shot_ids: Mapped[str] = mapped_column(Text)
    """JSON list of the frames that its prompt is about."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


THREADS = table_of(Thread)
NODES = table_of(Node)
EMBEDDINGS = table_of(Embedding)
LINKS = table_of(Link)
ENTITIES = table_of(Entity)
MENTIONS = table_of(Mention)
EDGES = table_of(Edge)
PROVENANCE = table_of(Provenance)
CALLS = table_of(Call)
