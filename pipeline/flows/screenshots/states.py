"""The screenshots flow as data: states, events, legal transitions. Rules: docs/sources/screenshots.md#states."""

from enum import StrEnum

from pipeline.engine.states import Machine


class WorkStatus(StrEnum):
    """State of a batch, a shard, a frame's analysis, a node's merge and its vector: the same five words for each."""

    PENDING = "pending"
    FAILED = "failed"
    """The last attempt failed; there will be another one when the row is due."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED_PERMANENT = "failed_permanent"


class WorkEvent(StrEnum):
    """What can happen to it."""

    CLAIM = "claim"
    STEP_DONE = "step_done"
    """A step's result is stored; the next step is claimed anew."""
    DONE = "done"
    WAIT = "wait"
    """A transient error: tried again when the row is due."""
    GIVE_BACK = "give_back"
    """Its worker was lost, or a gate closed: not the work's fault."""
    FAIL = "fail"
    """Permanent, or no attempts left."""
    RETRY = "retry"
    """A person wants it tried again."""
    REOPEN = "reopen"
    """What it was made of has changed: it must be done again."""


class Step(StrEnum):
    """Where a batch is in its chain: its shards are analysed and merged, then its segments become nodes."""

    ANALYSE = "analyse"
    EXPAND = "expand"


class Ask(StrEnum):
    """What the next call for a shard or an expansion is for. REPAIR: the reply was not usable; it is repaired once."""

    FIRST = "first"
    REPAIR = "repair"


class Track(StrEnum):
    """Which of the two queues a batch waits in. Rule: docs/sources/screenshots.md#tracks."""

    REALTIME = "realtime"
    RECOVERY = "recovery"


class Verdict(StrEnum):
    """What became of a captured frame; each one is in the ledger."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    """Not a readable picture; the ledger says why."""


class Reason(StrEnum):
    """Why a frame was not accepted."""

    DUPLICATE = "duplicate"
    INACTIVE = "inactive"
    EXCLUDED = "excluded"
    REFUSED = "refused"


class LetterKind(StrEnum):
    """What was given up. Merges and vectors are named by their nodes."""

    BATCH = "batch"
    MERGE = "merge"
    VECTOR = "vector"


class NodeKind(StrEnum):
    """What a node of the graph is about. Rule: docs/sources/screenshots.md#expansion."""

    EVENT = "event"
    KNOWLEDGE = "knowledge"
    STATE = "state"
    PROCEDURE = "procedure"
    PLAN = "plan"


DERIVED = (NodeKind.KNOWLEDGE, NodeKind.STATE, NodeKind.PROCEDURE, NodeKind.PLAN)


class Origin(StrEnum):
    """Who made a segment or a node."""

    MODEL = "model"
    DIRECT = "direct"
    """From the vision model's segments as they stand: without a text model, or its reply was not usable."""
    RULES = "rules"
    """From recognised text, window titles and rules, without a vision model."""


_S, _E = WorkStatus, WorkEvent

_LEGAL = {
    (_S.PENDING, _E.CLAIM): _S.RUNNING,
    (_S.FAILED, _E.CLAIM): _S.RUNNING,
    (_S.RUNNING, _E.STEP_DONE): _S.PENDING,
    (_S.RUNNING, _E.DONE): _S.SUCCEEDED,
    (_S.RUNNING, _E.WAIT): _S.FAILED,
    (_S.RUNNING, _E.GIVE_BACK): _S.PENDING,
    (_S.RUNNING, _E.FAIL): _S.FAILED_PERMANENT,
    # Its last attempt was lost with its worker, or its parent failed before it was claimed.
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
        # Its batch was taken apart: before its analysis was done, or before anything was made of it.
        (_S.FAILED, _E.GIVE_BACK): _S.PENDING,
        (_S.SUCCEEDED, _E.REOPEN): _S.PENDING,
    },
)
_REOPENED = {(state, _E.REOPEN): _S.PENDING for state in _S}
NODE = Machine("node", {**_LEGAL, **_REOPENED})
EMBEDDING = Machine("vector", {**_LEGAL, **_REOPENED})

CLAIMABLE = (WorkStatus.PENDING, WorkStatus.FAILED)
"""Work that may be claimed once it is due."""
OPEN = (*CLAIMABLE, WorkStatus.RUNNING)
