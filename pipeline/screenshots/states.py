"""The screenshots flow as data: states, events, legal transitions. Source 000, section 4."""

from enum import StrEnum

from pipeline.engine.states import Machine


class WorkStatus(StrEnum):
    """State of a screenshot, of a batch, of one of its shards, and of a node's merge: one set for all."""

    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    """Tried, and to be tried again when it is due."""
    SUCCEEDED = "succeeded"
    FAILED_PERMANENT = "failed_permanent"


class WorkEvent(StrEnum):
    """What can happen to any of them."""

    CLAIM = "claim"
    DONE = "done"
    WAIT = "wait"
    """A transient error: again, when the row is due."""
    GIVE_BACK = "give_back"
    """Its worker ended or was lost, or the gate refused: no fault of its own."""
    FAIL = "fail"
    """Permanent, or no attempts left."""
    RETRY = "retry"
    """A user asks for a dead letter again."""
    REOPEN = "reopen"
    """What it was made of has changed: it must be done again."""


_S, _E = WorkStatus, WorkEvent

_WORK = {
    (_S.PENDING, _E.CLAIM): _S.RUNNING,
    (_S.FAILED, _E.CLAIM): _S.RUNNING,
    (_S.RUNNING, _E.DONE): _S.SUCCEEDED,
    (_S.RUNNING, _E.WAIT): _S.FAILED,
    (_S.RUNNING, _E.GIVE_BACK): _S.PENDING,
    (_S.RUNNING, _E.FAIL): _S.FAILED_PERMANENT,
    (_S.FAILED_PERMANENT, _E.RETRY): _S.PENDING,
}

SCREENSHOT = Machine(
    "screenshot",
    {
        **_WORK,
        # Its file is gone: nothing that waits can be done any more.
        (_S.PENDING, _E.FAIL): _S.FAILED_PERMANENT,
        (_S.FAILED, _E.FAIL): _S.FAILED_PERMANENT,
        # Its batch was taken apart before it was done.
        (_S.FAILED, _E.GIVE_BACK): _S.PENDING,
    },
)
BATCH = Machine("batch of screenshots", _WORK)
SHARD = Machine("shard", _WORK)
NODE = Machine("node merge", {**_WORK, **{(state, _E.REOPEN): _S.PENDING for state in _S}})

OPEN = (WorkStatus.PENDING, WorkStatus.FAILED, WorkStatus.RUNNING)
"""Not at its end."""
