"""A dry run: what a run would ask of the providers, and how long the limits make it take. Writes nothing."""

import math

from sqlalchemy import func, or_, select

from pipeline.engine.gate import Unit
from pipeline.engine.limits import parse_windows
from pipeline.music import runs, syncing
from pipeline.music.routing import queue_of
from pipeline.music.models import SONGS
from pipeline.music.service import StartOptions, check
from pipeline.music.spaces import space_of
from pipeline.music.states import Mode, SongStatus, Step
from pipeline.music.views import Estimate
from pipeline.providers import gates
from pipeline.providers.gates import BATCH_SIZE_SETTING
from pipeline.storage.context import Context


def estimate(context: Context, options: StartOptions) -> Estimate:
    """What `start` with these options would do. Raises `UserError` for what `start` would refuse."""
    settings = context.settings
    check(settings, options)
    live = gates.live_values(context)
    size = int(live[BATCH_SIZE_SETTING].value)
    new = 0 if options.skip_sync else syncing.preview(context)
    left = math.inf if options.limit is None else options.limit
    vectors_only = min(_waiting(context, options, only_vectors=True), left)
    asked = 0.0
    if options.mode is not Mode.EMBEDDING:
        asked = min(_waiting(context, options, only_vectors=False) + new, left - vectors_only)
    batches_asked, batches_vectors = math.ceil(asked / size), math.ceil(vectors_only / size)
    paid_vectors = bool(settings.music.embeddings_provider) and options.mode is not Mode.METADATA
    embedded = batches_vectors + (batches_asked if options.mode is Mode.FULL else 0)
    calls = {
        queue_of(settings, options.mode, Step.METADATA): batches_asked,
        queue_of(settings, options.mode, Step.EMBED): embedded if paid_vectors else 0,
    }
    limits = {name: str(live[f"queue.{name}.limits"].value) for name, count in calls.items() if count}
    return Estimate(
        mode=options.mode, songs=int(asked + vectors_only), new_songs=int(min(new, asked)),
        batches=batches_asked + batches_vectors, metadata_calls=batches_asked,
        embedding_calls=embedded if paid_vectors else 0,
        seconds=max((least_s(calls[name], text) for name, text in limits.items()), default=0.0), limits=limits,
        cost=None if any(calls.values()) else 0.0,
    )  # fmt: skip


def _waiting(context: Context, options: StartOptions, *, only_vectors: bool) -> int:
    which = runs.only_vectors(options.mode)
    waiting = runs.waiting_songs(options.mode, space_of(context.settings))
    if options.failed and options.mode is not Mode.EMBEDDING:
        back = (SONGS.c.status == SongStatus.FAILED) & SONGS.c.missing_since.is_(None) & SONGS.c.batch_id.is_(None)
        waiting = or_(waiting, back)
    query = select(func.count()).where(waiting, which if only_vectors else ~which)
    with context.db.read() as session:
        return session.execute(query).scalar_one()


def least_s(calls: int, limits: str) -> float:
    """The least time in which these limits let so many calls begin."""
    requests = [window for window in parse_windows(limits) if window.unit is Unit.REQUESTS]
    return max((((calls - 1) // window.limit) * window.window_s for window in requests), default=0.0) if calls else 0.0
