"""Captures this machine's screens and windows: a PNG of each, and the program it shows; nothing of excluded ones."""

import time
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
from pipeline.flows.screenshots.frames.windows import Picture, Window, WindowGrabber, find
from pipeline.settings import ScreenshotSettings

EVERY_SCREEN = "screen:*"
"""All screens, as one source to capture."""
_LOST = (ScreenShotError, OSError, AssertionError)
"""There is no display, or none any more: for the latter, `mss` asserts that there is a reply."""
FRESH_S = 30.0
"""How long a connection is used: it knows the screens that there were at its beginning."""
PNG_LEVEL = 3
"""A third of the time of the default, for a tenth more bytes."""


@dataclass(frozen=True)
class Captured:
    """What `ingest` takes. `data`: the screen or window as PNG; empty where it is excluded, which `ingest` notes."""

    frame: Frame
    data: bytes = field(repr=False)


class Grabber(Protocol):
    """The part of `mss` that is used. `monitors[0]` is all monitors together."""

    @property
    def monitors(self) -> Sequence[Any]: ...

    def grab(self, monitor: Any, /) -> Any: ...

    def close(self) -> None: ...


class OfWindows(Protocol):
    """Takes pictures of single windows."""

    def grab(self, number: int, /) -> Picture | None: ...

    def close(self) -> None: ...


class Capturer:
    """Captures again and again. Close it, or use it in a `with`.

    Raises `UserError` without a display, or if programs are excluded and nothing tells which one is in front.
    """

    def __init__(
        self,
        rules: ScreenshotSettings,
        grabber: Callable[[], Grabber] = mss.mss,
        in_front: Callable[[], Foreground | None] = foreground,
        windows: Callable[[], OfWindows] = WindowGrabber,
        find_window: Callable[[str], Window | None] = find,
    ) -> None:
        self._rules = rules
        self._in_front = in_front
        self._find = find_window
        self._open = windows
        self._windows: OfWindows | None = None
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
        """These screens (`screen:1`, …) and windows (`window:NAME`) as they are now; those that are not there, not."""
        names = [source.partition(":")[2] for source in sources if source.startswith("window:")]
        screens = [source for source in sources if source.startswith("screen:")]
        try:
            found = self._screens(screens) if screens else []
            return found + [one for name in names if (one := self._window(name)) is not None]
        except _LOST as error:
            raise _no_display(error) from error

    def _screens(self, wanted: Sequence[str]) -> list[Captured]:
        if time.monotonic() - self._since > FRESH_S:
            self._grabber.close()
            self._grabber, self._since = self._connect(), time.monotonic()
        before = self._look()
        named = {f"screen:{number}": one for number, one in enumerate(self._grabber.monitors[1:], start=1)}
        monitors = {source: one for source, one in named.items() if source in wanted or EVERY_SCREEN in wanted}
        at = datetime.now(UTC)
        # What is excluded is not even grabbed.
        shots = [] if self._excludes(before) else [_png(self._grabber.grab(one)) for one in monitors.values()]
        # Another program may have come to the front meanwhile: what either look excludes is dropped.
        after = self._look()
        front = after if self._excludes(after) else before
        if self._excludes(front):
            shots = [b""] * len(monitors)
        frames = [Frame(source, at, front.app, front.title) for source in monitors]
        return [Captured(frame, data) for frame, data in zip(frames, shots, strict=True)]

    def _window(self, name: str) -> Captured | None:
        """What the window itself shows, whatever stands before it: so only its own program and title may exclude it."""
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
            # It may have turned to something else meanwhile, such as another page.
            if self._excludes(Foreground(after.app, after.title)):
                window = after
            else:
                data = _png(shot)
        return Captured(Frame(f"window:{name}", at, window.app, window.title), data)

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


def missing(sources: Sequence[str], captured: Sequence[Captured]) -> list[str]:
    """Those of these sources of which nothing was captured, since they are not there, or not shown."""
    found = {one.frame.source for one in captured}
    return [source for source in sources if source not in {*found, EVERY_SCREEN}]


def _png(shot: Any) -> bytes:
    out = BytesIO()
    Image.frombytes("RGB", shot.size, shot.bgra, "raw", "BGRX").save(out, "PNG", compress_level=PNG_LEVEL)
    return out.getvalue()


def _no_display(error: Exception) -> UserError:
    said = str(error) or "the display is gone"
    return UserError(
        f"the screens cannot be captured ({said}): start this in a desktop session (on Linux X11, with DISPLAY set; "
        "on macOS, allow screen recording), or let another program save screenshots and watch its folder",
        code="no_display",
    )
