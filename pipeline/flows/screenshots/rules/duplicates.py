"""Judges whether a frame is a duplicate, by its hash first, then by its sketch.

A hash of a whole screen cannot distinguish a typed word (2 to 28 bits of 256 on a 1080p window) from a cursor on text
(0 to 10). A sketch can: each cell is the mean of 8 × 8 pixels; text changes several cells in a row, a cursor few.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from PIL import Image

from pipeline.flows.screenshots.states import Verdict

HASH_CHARS = 64
"""Hex digits of a perceptual hash."""
LEVELS = 12
"""A cell has changed if its grey changed by more than this, of 255: JPEG compression changes it by less."""
RUN = 5
"""This many changed cells side by side are text: five characters. A cursor has two or three, a clock's digit two."""


@dataclass(frozen=True)
class Seen:
    """An accepted frame of the same source. Comparing with rejected frames too would hide slow changes."""

    id: int
    phash: str
    accepted_at: datetime


@dataclass(frozen=True)
class Judgement:
    """The verdict on a frame, as the ledger records it. `distance`: to the `nearest` accepted frame, if any."""

    verdict: Verdict
    threshold: int
    distance: int | None = None
    nearest: int | None = None


def recent(frames: Sequence[Seen], now: datetime, window_s: float, limit: int) -> list[Seen]:
    """Return the latest `limit` of a source's accepted frames that arrived within `window_s` before `now`, newest
    first, to compare a new frame with.

    Sorts by id, the order of arrival, because clocks go back. Frames with arrival times in the future count too.
    """
    fresh = [frame for frame in frames if (now - frame.accepted_at).total_seconds() <= window_s]
    return sorted(fresh, key=lambda frame: frame.id, reverse=True)[:limit]


def judge(
    phash: str, frames: Iterable[Seen], threshold: int, same: Callable[[Seen], bool] = lambda _: True
) -> Judgement:
    """Judge a frame a duplicate of the nearest of `frames` within `threshold` bits that `same` confirms.

    Of several at the same distance, names the first. An accepted frame names its nearest, too.
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


def distance(phash: str, other: str) -> int:
    """Count the bits of 256 in which two hashes differ. Raises `ValueError` for hashes of another length."""
    if len(phash) != HASH_CHARS or len(other) != HASH_CHARS:
        raise ValueError(f"a hash has {HASH_CHARS} hex digits, not {len(phash)} and {len(other)}")
    return (int(phash, 16) ^ int(other, 16)).bit_count()


def differs(sketch: Image.Image, other: Image.Image) -> bool:
    """Whether two sketches, small grey pictures of frames, differ by more than a cursor or single digits."""
    if sketch.size != other.size:
        return True
    before, after = (np.asarray(image, dtype=np.int16) for image in (sketch, other))
    changed = np.abs(before - after) > LEVELS
    width = changed.shape[1]
    if width < RUN:
        return bool(changed.any())
    run = changed[:, : width - RUN + 1].copy()
    for shift in range(1, RUN):
        run &= changed[:, shift : width - RUN + 1 + shift]
    return bool(run.any())
