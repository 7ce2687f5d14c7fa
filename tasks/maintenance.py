"""Beat's tasks: the sweeper, and cleaning up. Two beats do no harm: each tick is taken by one of them."""

from uuid import uuid4

import structlog

from pipeline.engine.leases import Leases
from pipeline.engine.presence import Presence
from pipeline.flows.documents import recovery, submission
from pipeline.flows.music import recovery as music_recovery
from pipeline.flows.music import service as music_service
from pipeline.flows.screenshots import recovery as screenshot_recovery
from pipeline.flows.screenshots.frames import files, rejections, retention
from pipeline.providers import gates
from pipeline.storage.context import Context, get_context
from tasks.app import app
from tasks.documents.canvas import launch
from tasks.music import canvas as music
from tasks.screenshots import canvas

log = structlog.get_logger(__name__)


@app.task(name="maintenance.sweep", ignore_result=True)
def sweep() -> int:
    """Give back what dead workers held and launch what nothing moves; how many documents were launched."""
    context = get_context()
    if not _take_tick(context, "sweep", context.settings.sweep_interval_s):
        return 0
    # Three intervals, so that a late tick does not begin the count anew.
    within_s = max(60, 3 * context.settings.sweep_interval_s)
    working = recovery.workers(context) | music_recovery.workers(context) | screenshot_recovery.workers(context)
    absent = Presence(context.redis).missed_twice(working, within_s)
    music_recovery.free_lost(context, absent)
    music.tend()
    canvas.sweep(absent)
    freed = recovery.free_lost(context, absent)
    documents = sorted(freed | set(recovery.unmoved(context)) | set(recovery.due_pages(context)))
    for document_id in documents:
        launch(document_id)
    if documents:
        log.info("sweep.launched", documents=len(documents), absent_workers=sorted(absent))
    return len(documents)


@app.task(name="maintenance.watchdog", ignore_result=True)
def watchdog() -> int:
    """Note what is due: breakers become half-open, timed pauses end. The gates do so by themselves; this tells."""
    context = get_context()
    gates.sync(context)
    return gates.tell_due(context) if _take_tick(context, "watchdog", 60) else 0


@app.task(name="maintenance.clean_up", ignore_result=True)
def clean_up() -> int:
    """Remove files that belong to nothing; how many."""
    context = get_context()
    if not _take_tick(context, "clean-up", 60):
        return 0
    removed = submission.remove_orphans(context) + files.remove_orphans(context) + retention.expire(context)
    music_service.prune(context)
    rejections.prune(context)
    if removed:
        log.info("clean_up.removed", files=removed)
    return removed


def _take_tick(context: Context, name: str, interval_s: float) -> bool:
    """Whether this tick is ours: nobody took one in the last 80 % of the interval."""
    return Leases(context.redis, f"tick:{name}", limit=1).acquire(uuid4().hex, interval_s * 0.8)
