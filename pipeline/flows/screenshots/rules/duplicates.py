"""Whether a frame was seen already, and how strictly that is judged while the vision queue is behind."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.flows.screenshots.frames.fingerprint import distance
from pipeline.flows.screenshots.states import Verdict
from pipeline.settings import ScreenshotSettings


@dataclass(frozen=True)
class Seen:
    """An accepted frame of the same source. Rejected ones are never compared with, or slow change would go unseen."""

    id: int
    phash: str
    accepted_at: datetime


@dataclass(frozen=True)
class Judgement:
    """What becomes of a frame, as the ledger keeps it. `distance`, `nearest`: to which accepted frame, if any."""

    verdict: Verdict
    threshold: int
    distance: int | None = None
    nearest: int | None = None


def recent(frames: Sequence[Seen], now: datetime, settings: ScreenshotSettings) -> list[Seen]:
    """What a new frame is compared with: the source's last accepted frames, newest first.

    Newest by arrival, which ids tell: clocks are set back. A frame from the future is as good as any.
    """
    fresh = [frame for frame in frames if (now - frame.accepted_at).total_seconds() <= settings.dedup_window_s]
    fresh.sort(key=lambda frame: frame.id, reverse=True)
    return fresh[: settings.dedup_frames]


def judge(
    phash: str, frames: Iterable[Seen], threshold: int, same: Callable[[Seen], bool] = lambda _: True
) -> Judgement:
    """Duplicate of the nearest of `frames` that is at most `threshold` bits away and the `same` to a closer look.

    Of several as near, the first is named. Accepted: named is the nearest, however near.
    """
    near = sorted(((distance(phash, frame.phash), frame) for frame in frames), key=lambda pair: pair[0])
    for bits, frame in near:
        if bits > threshold:
            break
        if same(frame):
            return Judgement(Verdict.DUPLICATE, threshold, bits, frame.id)
    if not near:
        return Judgement(Verdict.ACCEPTED, threshold)
    bits, frame = near[0]
    return Judgement(Verdict.ACCEPTED, threshold, bits, frame.id)


@dataclass(frozen=True)
class Pressure:
    """How frames are judged and batched now. `level` 0: as set; 1: wider threshold; 2: longer batches too."""

    level: int
    threshold: int
    batch_size: int
    batch_timeout_s: float


def pressure(waiting: int, level: int, settings: ScreenshotSettings) -> Pressure:
    """How to go on with `waiting` batches not yet begun, when the pressure was `level` before.

    It ends at half of what began it, so that it does not change with every batch. No frame is dropped by it without
    a row in the ledger: it is judged, by a wider threshold that the ledger names.
    """
    begins = (settings.pressure_batches, 2 * settings.pressure_batches)
    new = sum(waiting >= begin for begin in begins)
    while new < min(level, len(begins)) and waiting > begins[new] // 2:
        new += 1
    factor = settings.pressed_batch_factor if new == 2 else 1
    return Pressure(
        level=new,
        threshold=settings.dedup_threshold_pressed if new else settings.dedup_threshold,
        batch_size=settings.batch_size * factor,
        batch_timeout_s=settings.batch_timeout_s * factor,
    )
