"""States, events and legal transitions of the music flow. Rules: docs/sources/music.md#pipeline."""

from enum import StrEnum

from pipeline.engine.states import Machine


class SongStatus(StrEnum):
    """The state of a song."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class SongEvent(StrEnum):
    """An event of a song."""

    BEGIN = "begin"
    """Its batch was claimed for the first time."""
    DONE = "done"
    FAIL = "fail"
    GIVE_BACK = "give_back"
    """Its batch was cancelled, or the model left it out of its reply."""
    RESTORE = "restore"
    """Its batch was cancelled, but the song is complete: it waited for a new vector only, or has its result already."""
    RETRY = "retry"


class BatchStatus(StrEnum):
    """The state of a batch. QUEUED: it counts as under way, and needs a message for its next step."""

    PENDING = "PENDING"
    QUEUED = "QUEUED"
    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class BatchEvent(StrEnum):
    """An event of a batch."""

    LAUNCH = "launch"
    CLAIM = "claim"
    STEP_DONE = "step_done"
    """The batch has stored a step's result, and its chain continues with the next step."""
    WAIT = "wait"
    """A transient error: the step is retried when the row is due."""
    GIVE_BACK = "give_back"
    DONE = "done"
    FAIL = "fail"
    RETRY = "retry"
    CANCEL = "cancel"


class PipelineState(StrEnum):
    """The state of the pipeline, and of each run. Rule: docs/sources/music.md#pipeline."""

    IDLE = "idle"
    SYNCING = "syncing"
    ENQUEUING = "enqueuing"
    RUNNING = "running"
    PAUSED = "paused"
    BREAKER = "breaker"


class PipelineEvent(StrEnum):
    """An event of a run."""

    START = "start"
    START_WITHOUT_SYNC = "start_without_sync"
    CLAIM = "claim"
    """A worker claims the sync; the state stays."""
    WAIT = "wait"
    """The sync failed, and is retried when the row is due."""
    GIVE_BACK = "give_back"
    """The syncing worker was lost, or ended."""
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
    """The mode of a run: which steps its songs take. Rule: docs/sources/music.md#queues."""

    FULL = "full"
    METADATA = "metadata"
    EMBEDDING = "embedding"


class Step(StrEnum):
    """The step of a batch in its chain. REPAIR: the only repair of a reply that was not valid JSON of its shape."""

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
        (_B.FAILED, _C.RETRY): _B.PENDING,
        **{(state, _C.CANCEL): _B.CANCELLED for state in (_B.PENDING, _B.QUEUED, _B.PROCESSING)},
    },
)

OPEN = (BatchStatus.PENDING, BatchStatus.QUEUED, BatchStatus.PROCESSING)
"""States of batches that have not ended."""

_P, _E = PipelineState, PipelineEvent
AT_WORK = (_P.SYNCING, _P.ENQUEUING, _P.RUNNING, _P.BREAKER)
"""States in which a run has work to do."""

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
        # A call under way when the breaker opens may complete the last batch.
        (_P.RUNNING, _E.COMPLETE): _P.IDLE,
        (_P.BREAKER, _E.COMPLETE): _P.IDLE,
        **{(state, _E.STOP): _P.IDLE for state in (*AT_WORK, _P.PAUSED)},
        (_P.SYNCING, _E.FAIL): _P.IDLE,
        (_P.ENQUEUING, _E.FAIL): _P.IDLE,
    },
)

LIVE = (PipelineState.RUNNING, PipelineState.BREAKER)
"""States in which workers claim batches. Messages wait at the gate of an open breaker, so that its probe has a call to
make even if no sweep notices the end of the pause."""


def first_step(mode: Mode) -> Step:
    """Return the first step of a batch of this mode."""
    return Step.EMBED if mode is Mode.EMBEDDING else Step.METADATA


def chain_goes_on(mode: Mode, before: Step, after: Step) -> bool:
    """Whether a chain has a message for `after` behind that for `before`; otherwise the batch needs a new launch."""
    if before is Step.EMBED:
        return after is Step.SAVE
    return after is (Step.SAVE if mode is Mode.METADATA else Step.EMBED)


def step_after_metadata(mode: Mode, *, texts: bool) -> Step:
    """Return the step after metadata. `texts`: whether the batch has texts to embed."""
    return Step.EMBED if mode is Mode.FULL and texts else Step.SAVE
