"""Whether a frame is a duplicate: by its hash first, then by a closer look at its sketch.

A hash of a whole screen cannot tell a typed word (2 to 28 bits of 256 on a 1080p window) from a cursor on text (0 to
10). A sketch can: each of its cells is the mean of 8 × 8 pixels; text changes several in a row, a cursor few.
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
"""A cell has changed if its grey changed by more than this, of 255: less is what a JPEG loses."""
RUN = 5
"""This many changed cells side by side are text: five characters. A cursor has two or three, a clock's digit two."""


@dataclass(frozen=True)
class Seen:
    """An accepted frame of the same source. Rejected ones are not compared, or slow change would go unseen."""

    id: int
    phash: str
    accepted_at: datetime


@dataclass(frozen=True)
class Judgement:
    """What becomes of a frame, as the ledger keeps it. `distance`: to the `nearest` accepted frame, if any."""

    verdict: Verdict
    threshold: int
    distance: int | None = None
    nearest: int | None = None


def recent(frames: Sequence[Seen], now: datetime, window_s: float, limit: int) -> list[Seen]:
    """What a new frame is compared with: the source's last accepted frames, newest first.

    Newest by arrival, which ids tell: clocks are set back. A frame from the future is as good as any.
    """
    fresh = [frame for frame in frames if (now - frame.accepted_at).total_seconds() <= window_s]
    return sorted(fresh, key=lambda frame: frame.id, reverse=True)[:limit]


def judge(
    phash: str, frames: Iterable[Seen], threshold: int, same: Callable[[Seen], bool] = lambda _: True
) -> Judgement:
    """A duplicate of the nearest of `frames` that is at most `threshold` bits away and the `same` to a closer look.

    Of several as near, the first is named. An accepted frame names its nearest, however near.
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


def distance(one: str, other: str) -> int:
    """In how many of 256 bits two hashes differ. Raises `ValueError` for anything but two such hashes."""
    if len(one) != HASH_CHARS or len(other) != HASH_CHARS:
        raise ValueError(f"a hash has {HASH_CHARS} hex digits, not {len(one)} and {len(other)}")
    return (int(one, 16) ^ int(other, 16)).bit_count()


def differs(one: Image.Image, other: Image.Image) -> bool:
    """Whether two sketches differ by more than a cursor or a digit here and there."""
    if one.size != other.size:
        return True
    before, after = (np.asarray(image, dtype=np.int16) for image in (one, other))
    changed = np.abs(before - after) > LEVELS
    width = changed.shape[1]
    if width < RUN:
        return bool(changed.any())
    run = changed[:, : width - RUN + 1].copy()
    for shift in range(1, RUN):
        run &= changed[:, shift : width - RUN + 1 + shift]
    return bool(run.any())
