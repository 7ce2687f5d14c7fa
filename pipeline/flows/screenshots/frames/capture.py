"""Captures this machine's screens: a PNG of each monitor, and the program in front; nothing of excluded ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from types import TracebackType
from typing import Any, Protocol, Self

import mss
from mss.exception import ScreenShotError
from PIL import Image

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.frames.foreground import Foreground, foreground
from pipeline.flows.screenshots.frames.intake import Frame, excluded_by
from pipeline.settings import ScreenshotSettings

PNG_LEVEL = 3
"""A third of the time of the default, for a tenth more bytes."""


@dataclass(frozen=True)
class Captured:
    """What `ingest` takes. `data`: the monitor as PNG; empty where it is excluded, which `ingest` notes."""

    frame: Frame
    data: bytes = field(repr=False)


class Grabber(Protocol):
    """The part of `mss` that is used. `monitors[0]` is all monitors together."""

    @property
    def monitors(self) -> Sequence[Any]: ...

    def grab(self, monitor: Any, /) -> Any: ...

    def close(self) -> None: ...


class Capturer:
    """Captures again and again over one connection to the display. Close it, or use it in a `with`.

    Raises `UserError` without a display, or if programs are excluded and nothing tells which one is in front.
    """

    def __init__(
        self, rules: ScreenshotSettings, grabber: Callable[[], Grabber] = mss.mss,
        in_front: Callable[[], Foreground | None] = foreground,
    ) -> None:  # fmt: skip
        self._rules = rules
        self._in_front = in_front
        try:
            self._grabber = grabber()
        except (ScreenShotError, OSError) as error:
            raise _no_display(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._grabber.close()

    def capture(self) -> list[Captured]:
        """Every monitor as it is now: `screen:1`, `screen:2`, …"""
        before = self._look()
        try:
            monitors = self._grabber.monitors[1:]
            at = datetime.now(UTC)
            # What is excluded is not even grabbed.
            shots = [] if self._excludes(before) else [_png(self._grabber.grab(monitor)) for monitor in monitors]
        except (ScreenShotError, OSError) as error:
            raise _no_display(error) from error
        # Another program may have come to the front meanwhile: what either look excludes is dropped.
        after = self._look()
        front = after if self._excludes(after) else before
        if self._excludes(front):
            shots = [b""] * len(monitors)
        frames = [Frame(f"screen:{number}", at, front.app, front.title) for number in range(1, len(monitors) + 1)]
        return [Captured(frame, data) for frame, data in zip(frames, shots, strict=True)]

    def _look(self) -> Foreground:
        found = self._in_front()
        if found is None and (self._rules.excluded_apps or self._rules.excluded_titles):
            raise UserError(
                "programs are excluded, but nothing here tells which one is in front: install xprop (on X11), or empty "
                "screenshots.excluded_apps and excluded_titles",
                code="no_foreground",
            )
        return found or Foreground()

    def _excludes(self, front: Foreground) -> bool:
        return bool(excluded_by(front.app, front.title, self._rules))


def _png(shot: Any) -> bytes:
    out = BytesIO()
    Image.frombytes("RGB", shot.size, shot.bgra, "raw", "BGRX").save(out, "PNG", compress_level=PNG_LEVEL)
    return out.getvalue()


def _no_display(error: Exception) -> UserError:
    return UserError(
        f"the screens cannot be captured ({error}): start this in a desktop session (on Linux X11, with DISPLAY set; "
        "on macOS, allow screen recording), or let another program save screenshots and watch its folder",
        code="no_display",
    )
