"""`FLOW`: the functions and tables that this flow offers to the engine. Importing it loads the whole flow."""

from pipeline.flows.flow import Flow
from pipeline.flows.music import backlog, recovery, service, unserved
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.states import BatchStatus, SongStatus
from pipeline.flows.music.work.batch import BATCH_WORK
from pipeline.flows.music.work.sync import SYNC_WORK

FLOW = Flow(
    name="music",
    works=(SYNC_WORK, BATCH_WORK),
    due=recovery.due,
    runnable=recovery.runnable,
    anything=recovery.ANYTHING,
    next_wait_s=recovery.next_wait_s,
    fail_unserved=unserved.fail_unserved,
    unfinished=service.unfinished,
    retained=service.retained,
    waiting=backlog.waiting,
    failures=backlog.failures,
    followed={"songs": (SONGS, SongStatus), "song_batches": (BATCHES, BatchStatus)},
    ids={"runs": RUNS.c.id},
)
