"""The Python API of the music flow.

>>> from tasks import music
>>> music.start(skip_sync=True, limit=100)
>>> [match.song.title for match in music.search("a rainy night").matches]

Every function returns plain typed objects. All raise `UserError` with a message for people.
"""

from pipeline.engine.errors import NoWorkerWarning, UserError
from pipeline.engine.logs import configure_as_library
from pipeline.engine.presence import NoWorker
from pipeline.flows.music.library.songs import SyncReport
from pipeline.flows.music.service import AlreadyRunning, StartOptions
from pipeline.flows.music.states import BatchStatus, Mode, PipelineState, SongStatus
from pipeline.flows.music.views import BatchView, Estimate, MusicStatus, RunFigures, RunView, SearchResult, SongView
from pipeline.operations.music import (
    Choices,
    Run,
    batches,
    estimate,
    figures,
    pause,
    resume,
    run,
    runs,
    search,
    searchable,
    show,
    similar,
    songs,
    start,
    status,
    stop,
    sync,
    watch,
)

__all__ = [
    "AlreadyRunning",
    "BatchStatus",
    "BatchView",
    "Choices",
    "Estimate",
    "Mode",
    "MusicStatus",
    "NoWorker",
    "NoWorkerWarning",
    "PipelineState",
    "Run",
    "RunFigures",
    "RunView",
    "SearchResult",
    "SongStatus",
    "SongView",
    "StartOptions",
    "SyncReport",
    "UserError",
    "batches",
    "estimate",
    "figures",
    "pause",
    "resume",
    "run",
    "runs",
    "search",
    "searchable",
    "show",
    "similar",
    "songs",
    "start",
    "status",
    "stop",
    "sync",
    "watch",
]

configure_as_library()
