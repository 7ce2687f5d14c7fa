"""The music flow as data: states, events, legal transitions. Rules: docs/sources/music.md#pipeline."""

from enum import StrEnum

from pipeline.engine.states import Machine


class SongStatus(StrEnum):
    """State of a song."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class SongEvent(StrEnum):
    """What can happen to a song."""

    BEGIN = "begin"
    """Its batch was claimed for the first time."""
    DONE = "done"
    FAIL = "fail"
    GIVE_BACK = "give_back"
    """Its batch was cancelled, or the model left it out of its reply."""
    RESTORE = "restore"
    """Its batch was cancelled, but it has all it needs: it was in line for a new vector only, or for none."""
    RETRY = "retry"


class BatchStatus(StrEnum):
    """State of a batch. QUEUED: it counts as under way, and a message for its next step is wanted."""

    PENDING = "PENDING"
    QUEUED = "QUEUED"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class BatchEvent(StrEnum):
    """What can happen to a batch."""

    LAUNCH = "launch"
    CLAIM = "claim"
    STEP_DONE = "step_done"
    """A step's result is stored; the chain goes on with the next step."""
    WAIT = "wait"
    """A transient error: it is tried again when the row is due."""
    GIVE_BACK = "give_back"
    DONE = "done"
    FAIL = "fail"
    CANCEL = "cancel"


class PipelineState(StrEnum):
    """State of the pipeline, and of each run of it. Rule: docs/sources/music.md#pipeline."""

    IDLE = "idle"
    SYNCING = "syncing"
    ENQUEUING = "enqueuing"
    RUNNING = "running"
    PAUSED = "paused"
    BREAKER = "breaker"


class PipelineEvent(StrEnum):
    """What can happen to a run."""

    START = "start"
    START_WITHOUT_SYNC = "start_without_sync"
    CLAIM = "claim"
    """A worker takes the sync; the state stays."""
    WAIT = "wait"
    """The sync failed, and is tried again when the row is due."""
    GIVE_BACK = "give_back"
    """The worker that synced was lost, or ended."""
    SYNC_COMPLETE = "sync_complete"
    ENQUEUE_COMPLETE = "enqueue_complete"
    PAUSE = "pause"
    RESUME_SYNC = "resume_sync"
    RESUME_ENQUEUE = "resume_enqueue"
    RESUME_RUN = "resume_run"
    BREAK = "break"
    """A breaker of a provider that the run uses has opened."""
    MEND = "mend"
    COMPLETE = "complete"
    STOP = "stop"
    FAIL = "fail"


class Mode(StrEnum):
    """What a run does with its songs. Rule: docs/sources/music.md#queues."""

    FULL = "full"
    METADATA = "metadata"
    EMBEDDING = "embedding"


class Step(StrEnum):
    """Where a batch is in its chain. REPAIR: the reply was not valid JSON of the right shape, and gets one repair."""

    METADATA = "metadata"
    REPAIR = "repair"
    EMBED = "embed"
    SAVE = "save"


_S, _T = SongStatus, SongEvent

SONG = Machine(
    "song",
    {
        **{(state, _T.BEGIN): _S.PROCESSING for state in _S},
        (_S.PROCESSING, _T.DONE): _S.COMPLETED,
        (_S.PROCESSING, _T.FAIL): _S.FAILED,
        (_S.PROCESSING, _T.GIVE_BACK): _S.PENDING,
        (_S.PROCESSING, _T.RESTORE): _S.COMPLETED,
        (_S.FAILED, _T.RETRY): _S.PENDING,
    },
)

_B, _C = BatchStatus, BatchEvent

BATCH = Machine(
    "batch",
    {
        (_B.PENDING, _C.LAUNCH): _B.QUEUED,
        (_B.PENDING, _C.CLAIM): _B.PROCESSING,
        (_B.QUEUED, _C.CLAIM): _B.PROCESSING,
        (_B.PROCESSING, _C.STEP_DONE): _B.QUEUED,
        (_B.PROCESSING, _C.WAIT): _B.PENDING,
        (_B.PROCESSING, _C.GIVE_BACK): _B.PENDING,
        (_B.QUEUED, _C.GIVE_BACK): _B.PENDING,
        (_B.PROCESSING, _C.DONE): _B.COMPLETED,
        (_B.PROCESSING, _C.FAIL): _B.FAILED,
        **{(state, _C.CANCEL): _B.CANCELLED for state in (_B.PENDING, _B.QUEUED, _B.PROCESSING)},
    },
)

OPEN = (BatchStatus.PENDING, BatchStatus.QUEUED, BatchStatus.PROCESSING)
"""States of batches that have not ended."""

_P, _E = PipelineState, PipelineEvent
AT_WORK = (_P.SYNCING, _P.ENQUEUING, _P.RUNNING, _P.BREAKER)
"""States in which a run has something to do."""

PIPELINE = Machine(
    "music pipeline",
    {
        (_P.IDLE, _E.START): _P.SYNCING,
        (_P.IDLE, _E.START_WITHOUT_SYNC): _P.ENQUEUING,
        **{(_P.SYNCING, event): _P.SYNCING for event in (_E.CLAIM, _E.WAIT, _E.GIVE_BACK)},
        (_P.SYNCING, _E.SYNC_COMPLETE): _P.ENQUEUING,
        (_P.ENQUEUING, _E.ENQUEUE_COMPLETE): _P.RUNNING,
        **{(state, _E.PAUSE): _P.PAUSED for state in AT_WORK},
        (_P.PAUSED, _E.RESUME_SYNC): _P.SYNCING,
        (_P.PAUSED, _E.RESUME_ENQUEUE): _P.ENQUEUING,
        (_P.PAUSED, _E.RESUME_RUN): _P.RUNNING,
        (_P.RUNNING, _E.BREAK): _P.BREAKER,
        (_P.BREAKER, _E.MEND): _P.RUNNING,
        # A call that was under way when the breaker opened may complete the last batch.
        (_P.RUNNING, _E.COMPLETE): _P.IDLE,
        (_P.BREAKER, _E.COMPLETE): _P.IDLE,
        **{(state, _E.STOP): _P.IDLE for state in (*AT_WORK, _P.PAUSED)},
        (_P.SYNCING, _E.FAIL): _P.IDLE,
        (_P.ENQUEUING, _E.FAIL): _P.IDLE,
    },
)

LIVE = (PipelineState.RUNNING, PipelineState.BREAKER)
"""States in which batches are worked on. Behind an open breaker their messages wait at the gate, so that its one probe
finds something to try even if nobody notices that the time is over."""


def first_step(mode: Mode) -> Step:
    """The step that a batch of this mode begins with."""
    return Step.EMBED if mode is Mode.EMBEDDING else Step.METADATA


def chain_goes_on(mode: Mode, before: Step, after: Step) -> bool:
    """Whether a chain's message for `before` is followed by one for `after`; else the batch is launched anew there."""
    if before is Step.EMBED:
        return after is Step.SAVE
    return after is (Step.SAVE if mode is Mode.METADATA else Step.EMBED)


def step_after_metadata(mode: Mode, *, texts: bool) -> Step:
    """The step after metadata. `texts`: whether there is anything to embed."""
    return Step.EMBED if mode is Mode.FULL and texts else Step.SAVE
