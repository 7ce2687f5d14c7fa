"""States of items and of batches of chunks, with their transitions as data.

Rules: docs/sources/knowledge.md#status-updates.
"""

from enum import StrEnum

from pipeline.engine.states import Machine

FLOW = "knowledge"
LINE = "line"
"""The scope of all items that wait for admission, or for room to write."""
MOSTLY_MISSING = "mostly_missing"
"""The code of a doubtful loss: see `engine.losses`."""


class ItemType(StrEnum):
    """The type of an item's source. Each file of a directory is an item of type `directory`."""

    FILE = "file"
    URL = "url"
    NOTE = "note"
    SITEMAP = "sitemap"
    DIRECTORY = "directory"


class Loss(StrEnum):
    """What is known of a sitemap that has lost most of its pages: see `engine.losses`."""

    DOUBTFUL = "doubtful"
    """Its reading failed, so that a person confirms the loss."""
    ACCEPTED = "accepted"
    """A person has confirmed it for the next reading."""


class ItemStatus(StrEnum):
    """The state of an item. Reading and chunking are PREPROCESSING; embedding and writing are EMBEDDING."""

    PENDING = "pending"
    PREPROCESSING = "preprocessing"
    EMBEDDING = "embedding"
    COMPLETED = "completed"
    FAILED = "failed"


class ItemEvent(StrEnum):
    """An event of an item."""

    READ = "read"
    CHUNK = "chunk"
    """Its text is read and chunked, and its batches wait for vectors."""
    REQUEUE_READ = "read_again"
    WRITE = "write"
    COMPLETE = "complete"
    REQUEUE_WRITE = "write_again"
    FAIL = "fail"
    CANCEL = "cancel"
    REPROCESS = "reprocess"


_PENDING, _PREPROCESSING, _EMBEDDING = ItemStatus.PENDING, ItemStatus.PREPROCESSING, ItemStatus.EMBEDDING
_COMPLETED, _FAILED = ItemStatus.COMPLETED, ItemStatus.FAILED
ITEM: Machine[ItemStatus, ItemEvent] = Machine(
    "knowledge item",
    {
        (_PENDING, ItemEvent.READ): _PREPROCESSING,
        (_PREPROCESSING, ItemEvent.CHUNK): _EMBEDDING,
        (_PREPROCESSING, ItemEvent.REQUEUE_READ): _PENDING,
        (_EMBEDDING, ItemEvent.WRITE): _EMBEDDING,
        (_EMBEDDING, ItemEvent.COMPLETE): _COMPLETED,
        (_EMBEDDING, ItemEvent.REQUEUE_WRITE): _EMBEDDING,
        (_PREPROCESSING, ItemEvent.FAIL): _FAILED,
        (_EMBEDDING, ItemEvent.FAIL): _FAILED,
        (_PENDING, ItemEvent.CANCEL): _FAILED,
        (_PREPROCESSING, ItemEvent.CANCEL): _FAILED,
        (_EMBEDDING, ItemEvent.CANCEL): _FAILED,
        (_COMPLETED, ItemEvent.REPROCESS): _PENDING,
        (_FAILED, ItemEvent.REPROCESS): _PENDING,
    },
)
OPEN = (_PENDING, _PREPROCESSING, _EMBEDDING)
"""States of an item that has not ended."""


class BatchStatus(StrEnum):
    """The state of a batch of chunks."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class BatchEvent(StrEnum):
    """An event of a batch."""

    CLAIM = "claim"
    DONE = "done"
    FAIL = "fail"
    WAIT = "wait"
    GIVE_BACK = "give_back"


BATCH: Machine[BatchStatus, BatchEvent] = Machine(
    "batch of chunks",
    {
        (BatchStatus.PENDING, BatchEvent.CLAIM): BatchStatus.RUNNING,
        (BatchStatus.RUNNING, BatchEvent.DONE): BatchStatus.DONE,
        (BatchStatus.RUNNING, BatchEvent.FAIL): BatchStatus.FAILED,
        (BatchStatus.RUNNING, BatchEvent.WAIT): BatchStatus.PENDING,
        (BatchStatus.RUNNING, BatchEvent.GIVE_BACK): BatchStatus.PENDING,
    },
)
