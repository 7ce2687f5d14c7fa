"""The cost of a screenshot's intake.

`png_ratio`: frames hashed and judged in a second, of those that `imagehash` alone hashes; 1 is as fast.
`jpeg_draft_speedup`: the same for JPEG, which we decode at a smaller size. Both use CPU time, which other processes do
not change. `bytes_per_1000`: disk for 1,000 accepted 1080p frames, files and rows.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import imagehash
from PIL import Image
from structlog.testing import capture_logs

from benchmarks.support import CORPUS, BenchmarkError, progress
from pipeline.flows.screenshots.frames.capture import PNG_LEVEL
from pipeline.flows.screenshots.frames.intake import Frame, ingest
from pipeline.flows.screenshots.rules.duplicates import Seen, differs, judge
from pipeline.process import new_context
from pipeline.reading.ocr.fingerprint import Fingerprint, read_frame
from pipeline.settings import ScreenshotSettings, Settings
from pipeline.storage.schema import migrate
from tests.support.frames import TYPED, Desktop, draw, encoded

JPEG_QUALITY = 85


@dataclass(frozen=True)
class Speed:
    """Milliseconds of CPU time: the median over the rounds, summed over all pictures."""

    bare_ms: float
    ours_ms: float

    @property
    def ratio(self) -> float:
        return self.bare_ms / self.ours_ms


def measure_hashing(rounds: int = 7, stored: int = 60) -> dict[str, Any]:
    """Measure both ratios, `bytes_per_1000`, and the figures behind them."""
    pictures = screens()
    progress(f"{len(pictures)} screens, {rounds} rounds each as PNG and as JPEG")
    png = compare([encoded(image) for image in pictures], rounds)
    jpeg = compare([encoded(image, "JPEG", quality=JPEG_QUALITY) for image in pictures], rounds)
    progress(f"intake of {stored} frames")
    return {
        "png_ratio": round(png.ratio, 3),
        "jpeg_draft_speedup": round(jpeg.ratio, 2),
        "pictures": len(pictures),
        "png_bare_ms": round(png.bare_ms / len(pictures), 2),
        "png_ours_ms": round(png.ours_ms / len(pictures), 2),
        "jpeg_bare_ms": round(jpeg.bare_ms / len(pictures), 2),
        "jpeg_ours_ms": round(jpeg.ours_ms / len(pictures), 2),
        **measure_storage(stored),
    }


def screens() -> list[Image.Image]:
    """Return drawn screens, after the screenshots of the corpus if it is there."""
    paths = sorted((CORPUS / "screenshots").glob("*.png"))
    drawn = [Desktop(), Desktop(seed=1, dark=True, lines=36), Desktop(seed=2, typed=TYPED), Desktop(dialog="Save?")]
    real = []
    for path in paths:
        with Image.open(path) as opened:
            real.append(opened.convert("RGB"))
    return real + [draw(desktop) for desktop in drawn]


def compare(files: Sequence[bytes], rounds: int) -> Speed:
    """Time imagehash alone and our intake in turns with each file, so that other load affects both."""
    rules, now = ScreenshotSettings(), datetime.now(UTC)
    seen = [read_frame(data) for data in files]
    frames = [Seen(number, fingerprint.phash, now) for number, fingerprint in enumerate(seen)]

    def ours(data: bytes) -> None:
        fingerprint = read_frame(data)
        # Each frame is a duplicate of itself, so the time includes the comparison of sketches.
        judge(
            fingerprint.phash,
            frames[-rules.dedup_frames :],
            rules.dedup_threshold,
            lambda frame: _same(fingerprint, seen[frame.id]),
        )

    took: list[tuple[list[float], list[float]]] = [([], []) for _ in files]
    for number in range(rounds):
        for data, (bare_ms, ours_ms) in zip(files, took, strict=True):
            turns: list[tuple[Callable[[bytes], None], list[float]]] = [(bare, bare_ms), (ours, ours_ms)]
            for work, times in turns if number % 2 else turns[::-1]:
                times.append(_took_ms(work, data))
    return Speed(sum(median(fingerprint) for fingerprint, _ in took), sum(median(other) for _, other in took))


def bare(data: bytes) -> None:
    """Hash the same file without Penstock."""
    with Image.open(BytesIO(data)) as image:
        imagehash.phash(image, hash_size=16)


def measure_storage(frames: int) -> dict[str, float]:
    """Measure bytes on disk for 1,000 accepted frames (SQLite), and the intake of new and duplicate frames a second."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-frames-"))
    try:
        # The log has a line for each frame and would hide the table.
        with capture_logs():
            return _stored(folder, frames)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stored(folder: Path, count: int) -> dict[str, float]:
    context = new_context(Settings(data_dir=folder, database_url=f"sqlite:///{folder / 'penstock.db'}"))
    migrate(context.db)
    empty = _bytes_in(folder)
    started = datetime.now(UTC)
    frames = [_captured(number) for number in range(count)]
    try:
        accepted, took_s = 0, 0.0
        for number, data in enumerate(frames):
            before = time.perf_counter()
            accepted += ingest(
                context, data, Frame("screen:1", started + timedelta(seconds=number), "editor", "report")
            ).accepted
            took_s += time.perf_counter() - before
        used = _bytes_in(folder) - empty
        before = time.perf_counter()
        for number, data in enumerate(frames[-5:]):
            ingest(context, data, Frame("screen:1", started + timedelta(hours=1, seconds=number)))
        again_s = (time.perf_counter() - before) / 5
    finally:
        context.db.dispose()
    if accepted != count:
        raise BenchmarkError(f"{accepted} of {count} frames were accepted")
    return {
        "bytes_per_1000": round(used / accepted * 1000),
        "accepted_per_s": round(accepted / took_s, 1),
        "duplicates_per_s": round(1 / again_s, 1),
    }


def _captured(number: int) -> bytes:
    """Draw a screen for this number and encode it as `capture` does."""
    picker = random.Random(number)
    screen = Desktop(seed=number, lines=picker.randint(15, 36), dark=number % 3 == 0)
    return encoded(draw(screen), compress_level=PNG_LEVEL)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _same(first: Fingerprint, second: Fingerprint) -> bool:
    return not differs(first.sketch, second.sketch)


def _took_ms(work: Callable[[bytes], None], data: bytes) -> float:
    started = time.thread_time()
    work(data)
    return (time.thread_time() - started) * 1000
