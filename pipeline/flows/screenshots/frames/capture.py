"""Captures this machine's screens and windows as PNGs, with the programs' names, without excluded programs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from math import ceil, floor
from types import TracebackType
from typing import Any, Protocol, Self

import mss
from mss.exception import ScreenShotError
from PIL import Image

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.frames import desktop
from pipeline.flows.screenshots.frames.foreground import Foreground, foreground
from pipeline.flows.screenshots.frames.intake import Frame, excluded_by
from pipeline.flows.screenshots.frames.windows import Picture, Window, WindowGrabber, find
from pipeline.flows.screenshots.rules.exposure import Box, Placed, exposed
from pipeline.settings import ScreenshotSettings

EVERY_SCREEN = "screen:*"
"""All screens, as one source to capture."""
_LOST = (ScreenShotError, OSError, AssertionError)
"""Errors without a display. When a display disappears, an assertion of `mss` fails."""
FRESH_S = 30.0
"""Seconds after which to reconnect: a connection knows only the screens from its start."""
PNG_LEVEL = 3
"""Takes a third of the default level's time, for a tenth more bytes."""


@dataclass(frozen=True)
class Captured:
    """Arguments for `ingest`. `data`: a PNG of the screen or window; empty if excluded, which `ingest` records."""

    frame: Frame
    data: bytes = field(repr=False)


class Grabber(Protocol):
    """The methods of `mss` that a capturer calls. `monitors[0]` spans all monitors."""

    @property
    def monitors(self) -> Sequence[Any]: ...

    def grab(self, monitor: Any, /) -> Any: ...

    def close(self) -> None: ...


class GrabsWindows(Protocol):
    """Captures single windows."""

    def grab(self, number: int, /) -> Picture | None: ...

    def close(self) -> None: ...


class Capturer:
    """Captures screens and windows over one connection. Close it, or use it in a `with`.

    Raises `UserError` without a display, or if settings exclude programs and this machine cannot name the front one.
    """

    def __init__(
        self,
        rules: ScreenshotSettings,
        grabber: Callable[[], Grabber] = mss.mss,
        in_front: Callable[[], Foreground | None] = foreground,
        windows: Callable[[], GrabsWindows] = WindowGrabber,
        find_window: Callable[[str], Window | None] = find,
        on_screens: Callable[[], Sequence[Placed] | None] = desktop.windows,
    ) -> None:
        self.rules = rules
        """Settings with the exclusions; the caller may replace them between captures."""
        self._on_screens = on_screens
        self._in_front = in_front
        self._find = find_window
        self._open = windows
        self._windows: GrabsWindows | None = None
        self._connect = grabber
        try:
            self._grabber, self._since = grabber(), time.monotonic()
        except _LOST as error:
            raise _no_display(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._grabber.close()
        finally:
            if self._windows is not None:
                self._windows.close()

    def capture(self, sources: Sequence[str] = (EVERY_SCREEN,)) -> list[Captured]:
        """Capture these screens (`screen:1`, …) and windows (`window:NAME`); leave out missing ones.

        An excluded screen or window has no picture: its `data` is empty. Raises `UserError` without a display, or for a
        window if this machine cannot list windows.
        """
        names = [source.partition(":")[2] for source in sources if source.startswith("window:")]
        screens = [source for source in sources if source.startswith("screen:")]
        try:
            captured = self._screens(screens) if screens else []
            return captured + [window for name in names if (window := self._window(name)) is not None]
        except _LOST as error:
            raise _no_display(error) from error

    def _screens(self, wanted: Sequence[str]) -> list[Captured]:
        if time.monotonic() - self._since > FRESH_S:
            self._grabber.close()
            self._grabber, self._since = self._connect(), time.monotonic()
        before = self._foreground()
        named = {f"screen:{number}": monitor for number, monitor in enumerate(self._grabber.monitors[1:], start=1)}
        monitors = {source: named[source] for source in named if source in wanted or EVERY_SCREEN in wanted}
        at = datetime.now(UTC)
        # Do not even grab the screens while an excluded program is in front.
        parts = None if self._excludes(before) else self._exposed()
        grabs = [] if parts is None else [self._grabber.grab(monitor) for monitor in monitors.values()]
        # An excluded window may have come to the front, or moved, during the grab.
        after = self._foreground()
        front = after if self._excludes(after) else before
        moved = None if parts is None or self._excludes(front) else self._exposed()
        shots = [b""] * len(monitors)
        if parts is not None and moved is not None:
            hidden = [*parts, *moved]
            shots = [_png(grab, monitor, hidden) for grab, monitor in zip(grabs, monitors.values(), strict=True)]
        frames = [Frame(source, at, front.app, front.title) for source in monitors]
        return [Captured(frame, data) for frame, data in zip(frames, shots, strict=True)]

    def _window(self, name: str) -> Captured | None:
        """Capture a window without the windows before it, so that only its own program and title can exclude it. None
        if it is missing."""
        window, at = self._find(name), datetime.now(UTC)
        if window is None:
            return None
        if self._windows is None:
            self._windows = self._open()
        data = b""
        if not self._excludes(Foreground(window.app, window.title)):
            shot = self._windows.grab(window.number)
            after = self._find(hex(window.number))
            if shot is None or after is None:
                return None
            # The window may show something else by now, such as another page.
            if self._excludes(Foreground(after.app, after.title)):
                window = after
            else:
                data = _png(shot)
        return Captured(Frame(f"window:{name}", at, window.app, window.title), data)

    def _exposed(self) -> list[Box] | None:
        """Return the parts of the screens that show excluded windows behind the front one, to be blanked; None if the
        place of such a window is unknown. Raises `UserError` if settings exclude programs, and this machine cannot
        list windows."""
        if not self._has_exclusions:
            return []
        windows = self._on_screens()
        if windows is None:
            raise UserError(
                "settings exclude programs, but this machine cannot list its windows, which may show behind the front "
                "one: use a window manager that lists them (X11), or empty screenshots.excluded_apps and "
                "excluded_titles",
                code="no_windows",
            )
        return exposed(windows, lambda app, title: excluded_by(app, title, self.rules))

    @property
    def _has_exclusions(self) -> bool:
        return bool(self.rules.excluded_apps or self.rules.excluded_titles)

    def _foreground(self) -> Foreground:
        front = self._in_front()
        if front is None and self._has_exclusions:
            raise UserError(
                "settings exclude programs, but this machine cannot name the front one: install xprop (X11), or empty "
                "screenshots.excluded_apps and excluded_titles",
                code="no_foreground",
            )
        return front or Foreground()

    def _excludes(self, front: Foreground) -> bool:
        return bool(excluded_by(front.app, front.title, self.rules))


def missing(sources: Sequence[str], captured: Sequence[Captured]) -> list[str]:
    """Return those of `sources` without a capture: they do not exist, or the display does not show them. Never names
    `EVERY_SCREEN`."""
    present = {capture.frame.source for capture in captured}
    return [source for source in sources if source not in {*present, EVERY_SCREEN}]


def _png(shot: Any, monitor: Any = None, hidden: Sequence[Box] = ()) -> bytes:
    """Return a picture as PNG, with `hidden` parts in black; they count like the place of its monitor."""
    out = BytesIO()
    picture = Image.frombytes("RGB", shot.size, shot.bgra, "raw", "BGRX")
    for box in hidden:
        # On dense screens a point has several pixels.
        across, down = shot.size[0] / monitor["width"], shot.size[1] / monitor["height"]
        left, right = ((side - monitor["left"]) * across for side in (box.left, box.right))
        top, bottom = ((side - monitor["top"]) * down for side in (box.top, box.bottom))
        picture.paste((0, 0, 0), (floor(left), floor(top), ceil(right), ceil(bottom)))
    picture.save(out, "PNG", compress_level=PNG_LEVEL)
    return out.getvalue()


def _no_display(error: Exception) -> UserError:
    reason = str(error) or "the display disappeared"
    return UserError(
        f"cannot capture the screens ({reason}): start this in a desktop session (on Linux X11, with DISPLAY set; "
        "on macOS, allow screen recording), or let another program save screenshots and watch its folder",
        code="no_display",
    )
