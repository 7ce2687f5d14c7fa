"""The screenshots flow as data: states, events, legal transitions. Rules: docs/sources/screenshots.md#states."""

from enum import StrEnum

from pipeline.engine.states import Machine


class WorkStatus(StrEnum):
    """The states of batches, shards, frames' analyses, nodes' merges and vectors."""

    PENDING = "pending"
    FAILED = "failed"
    """The latest attempt failed; the next follows when the row is due."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED_PERMANENT = "failed_permanent"


class WorkEvent(StrEnum):
    """The events of such work."""

    CLAIM = "claim"
    STEP_DONE = "step_done"
    """The step's result is stored; workers claim the next step anew."""
    DONE = "done"
    WAIT = "wait"
    """A transient error; a retry follows when the row is due."""
    GIVE_BACK = "give_back"
    """The worker died or a gate closed, without a fault of the work."""
    FAIL = "fail"
    """A permanent error, or no attempts left."""
    RETRY = "retry"
    """A person replays it."""
    REOPEN = "reopen"
    """Its input changed: the work starts over."""


class Step(StrEnum):
    """The steps of a batch: analyse and merge its shards, then expand its segments to nodes."""

    ANALYSE = "analyse"
    EXPAND = "expand"


class Ask(StrEnum):
    """The purpose of the next call for a shard or an expansion. REPAIR: to repair an unusable reply, once."""

    FIRST = "first"
    REPAIR = "repair"


class Track(StrEnum):
    """The track on which a batch waits. Rule: docs/sources/screenshots.md#tracks."""

    REALTIME = "realtime"
    RECOVERY = "recovery"


class Verdict(StrEnum):
    """The verdict on a frame, which the ledger records for rejected frames."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    """The picture is unreadable; the ledger has the reason."""


class Reason(StrEnum):
    """The reason of a rejection."""

    DUPLICATE = "duplicate"
    INACTIVE = "inactive"
    EXCLUDED = "excluded"
    REFUSED = "refused"


class LetterKind(StrEnum):
    """Kinds of dead letters. Merges and vectors have the ids of their nodes."""

    BATCH = "batch"
    MERGE = "merge"
    VECTOR = "vector"


class NodeKind(StrEnum):
    """The kind of a node of the graph. Rule: docs/sources/screenshots.md#expansion."""

    EVENT = "event"
    KNOWLEDGE = "knowledge"
    STATE = "state"
    PROCEDURE = "procedure"
    PLAN = "plan"


DERIVED = (NodeKind.KNOWLEDGE, NodeKind.STATE, NodeKind.PROCEDURE, NodeKind.PLAN)


class Origin(StrEnum):
    """The origin of a segment or a node."""

    MODEL = "model"
    DIRECT = "direct"
    """Directly from the vision model's segments: without a text model, or after an unusable reply."""
    RULES = "rules"
    """From recognised text, window titles and rules, without any model."""


_S, _E = WorkStatus, WorkEvent

_LEGAL = {
    (_S.PENDING, _E.CLAIM): _S.RUNNING,
    (_S.FAILED, _E.CLAIM): _S.RUNNING,
    (_S.RUNNING, _E.STEP_DONE): _S.PENDING,
    (_S.RUNNING, _E.DONE): _S.SUCCEEDED,
    (_S.RUNNING, _E.WAIT): _S.FAILED,
    (_S.RUNNING, _E.GIVE_BACK): _S.PENDING,
    (_S.RUNNING, _E.FAIL): _S.FAILED_PERMANENT,
    # Its last attempt died with its worker, or its parent failed before the claim.
    (_S.PENDING, _E.FAIL): _S.FAILED_PERMANENT,
    (_S.FAILED, _E.FAIL): _S.FAILED_PERMANENT,
    (_S.FAILED_PERMANENT, _E.RETRY): _S.PENDING,
}

BATCH = Machine("batch", _LEGAL)
SHARD = Machine("shard", _LEGAL)
SCREENSHOT = Machine(
    "screenshot",
    {
        **_LEGAL,
        # A deletion broke up its batch, before or after the end of its analysis.
        (_S.FAILED, _E.GIVE_BACK): _S.PENDING,
        (_S.SUCCEEDED, _E.REOPEN): _S.PENDING,
    },
)
_REOPENED = {(state, _E.REOPEN): _S.PENDING for state in _S}
NODE = Machine("node", {**_LEGAL, **_REOPENED})
EMBEDDING = Machine("vector", {**_LEGAL, **_REOPENED})

CLAIMABLE = (WorkStatus.PENDING, WorkStatus.FAILED)
"""States of work that workers may claim once it is due."""
OPEN = (*CLAIMABLE, WorkStatus.RUNNING)
