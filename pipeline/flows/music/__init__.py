"""Music: songs become descriptions, tags and vectors, batch by batch, within what providers allow. Source 002."""

from pipeline.flows.flow import Flow
from pipeline.flows.music import live_settings, recovery, service
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.states import BatchStatus, SongStatus

FLOW = Flow(
    name="music",
    claimed=(RUNS, BATCHES),
    due=recovery.due,
    next_wait_s=recovery.next_wait_s,
    release_lost=recovery.release_lost,
    release=recovery.release_workers,
    clean_up=service.prune,
    retained=service.retained,
    gated_queues=live_settings.gated_queues,
    live_settings=live_settings.live_settings,
    followed={"songs": (SONGS, SongStatus), "song_batches": (BATCHES, BatchStatus)},
)
