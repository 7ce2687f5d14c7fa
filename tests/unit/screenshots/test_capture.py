"""Capture takes every monitor, skips exclusions, and advises users where it cannot capture."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pytest
from mss.exception import ScreenShotError
from PIL import Image

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.frames import capture, desktop, foreground
from pipeline.flows.screenshots.frames.capture import Capturer, missing
from pipeline.flows.screenshots.frames.foreground import Foreground, of_xprop
from pipeline.flows.screenshots.frames.windows import Picture, Window
from pipeline.flows.screenshots.rules.exposure import Box, Placed
from pipeline.settings import ScreenshotSettings

FREE = ScreenshotSettings()
EXCLUDING = ScreenshotSettings(excluded_apps=["*keepass*"])


@dataclass(frozen=True)
class Shot:
    size: tuple[int, int]
    bgra: bytes


@dataclass
class Screens:
    """Two monitors, blue and red."""

    monitors: tuple[int, ...] = (0, 1, 2)
    grabbed: list[int] = field(default_factory=list)
    closed: bool = False

    def grab(self, monitor: int, /) -> Shot:
        self.grabbed.append(monitor)
        return Shot((4, 3), (b"\xff\0\0\0" if monitor == 1 else b"\0\0\xff\0") * 12)

    def close(self) -> None:
        self.closed = True


def fronts(*windows: Foreground | None) -> Callable[[], Foreground | None]:
    looks = iter(windows)
    return lambda: next(looks)


def test_each_monitor_is_a_png_with_the_program_in_front() -> None:
    screens, front = Screens(), Foreground("editor", "report.txt")
    with Capturer(FREE, lambda: screens, lambda: front) as capturer:
        first, second = capturer.capture()
    assert [shot.frame.source for shot in (first, second)] == ["screen:1", "screen:2"]
    assert (first.frame.app, first.frame.window_title, first.frame.ts) == ("editor", "report.txt", second.frame.ts)
    with Image.open(BytesIO(first.data)) as blue, Image.open(BytesIO(second.data)) as red:
        assert (blue.format, blue.size, blue.getpixel((0, 0)), red.getpixel((3, 2))) == (
            "PNG",
            (4, 3),
            (0, 0, 255),
            (255, 0, 0),
        )
    assert screens.closed


@dataclass
class Windows:
    """A grabber that shows windows of these numbers in green."""

    shown: set[int] = field(default_factory=lambda: {7})
    grabbed: list[int] = field(default_factory=list)
    closed: bool = False

    def grab(self, number: int, /) -> Picture | None:
        self.grabbed.append(number)
        return Picture((2, 2), b"\0\xff\0\0" * 4) if number in self.shown else None

    def close(self) -> None:
        self.closed = True


def of_windows(windows: Windows, **matches: Window | None) -> Capturer:
    """Make a capturer that finds these windows by name and by number."""
    known = {**matches, **{hex(window.number): window for window in matches.values() if window}}
    return Capturer(EXCLUDING, Screens, Foreground, lambda: windows, known.get, list)


def test_a_window_is_captured_with_its_own_program_and_title() -> None:
    windows = Windows()
    with of_windows(windows, Mail=Window(7, "Mail", "Inbox"), Gone=None, Hidden=Window(8, "Hidden", "")) as capturer:
        wanted = ["window:Mail", "screen:2", "window:Gone", "window:Hidden", "screen:9"]
        screen, window = captured = capturer.capture(wanted)
    assert (screen.frame.source, window.frame.source) == ("screen:2", "window:Mail")
    assert (window.frame.app, window.frame.window_title) == ("Mail", "Inbox")
    with Image.open(BytesIO(window.data)) as green:
        assert (green.size, green.getpixel((1, 1))) == ((2, 2), (0, 255, 0))
    assert missing(wanted, captured) == ["window:Gone", "window:Hidden", "screen:9"]
    assert windows.closed


def test_a_newly_connected_screen_is_captured_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    plugged = [Screens(monitors=(0, 1)), Screens(monitors=(0, 1, 2))]
    opened = iter(plugged)
    capturer = Capturer(FREE, lambda: next(opened), Foreground)
    assert [len(capturer.capture()), len(capturer.capture())] == [1, 1]
    monkeypatch.setattr(capture, "FRESH_S", -1.0)
    assert len(capturer.capture()) == 2
    assert [monitor.closed for monitor in plugged] == [True, False]


def test_a_window_of_an_excluded_program_is_not_even_grabbed() -> None:
    windows = Windows()
    (shot,) = of_windows(windows, Safe=Window(7, "KeePassXC", "vault")).capture(["window:Safe"])
    assert (shot.data, shot.frame.app, windows.grabbed) == (b"", "KeePassXC", [])


def test_a_window_that_becomes_excluded_during_the_capture_is_dropped() -> None:
    pages = iter([Window(7, "Browser", "News"), Window(7, "Browser", "Vault")])
    rules = ScreenshotSettings(excluded_titles=["vault"])
    (shot,) = Capturer(rules, Screens, Foreground, Windows, lambda _: next(pages)).capture(["window:Browser"])
    assert (shot.data, shot.frame.window_title) == (b"", "Vault")


@pytest.mark.parametrize("source", ["screen:0", "screen:one", "window:a b", "window:", "desk"])
def test_settings_refuse_an_invalid_source(source: str) -> None:
    with pytest.raises(ValueError, match="capture_sources"):
        ScreenshotSettings(capture_sources=["screen:*", source])


def test_an_excluded_screen_is_not_even_grabbed() -> None:
    screens, vault = Screens(), Foreground("KeePassXC", "vault")
    shots = Capturer(EXCLUDING, lambda: screens, lambda: vault).capture()
    assert [shot.data for shot in shots] == [b"", b""]
    assert screens.grabbed == []


@pytest.mark.parametrize("order", [0, 1])
def test_programs_in_front_before_or_after_the_capture_are_excluded(order: int) -> None:
    looks = [Foreground("editor", "x"), Foreground("KeePassXC", "vault")]
    shots = Capturer(EXCLUDING, Screens, fronts(*(looks[::-1] if order else looks)), on_screens=list).capture()
    assert [(shot.data, shot.frame.app) for shot in shots] == [(b"", "KeePassXC")] * 2


@dataclass
class Wide(Screens):
    """One white monitor of 10 by 4 points, each two pixels wide and high, right of another screen."""

    monitors: Any = (None, {"left": 100, "top": 0, "width": 10, "height": 4})

    def grab(self, monitor: Any, /) -> Shot:
        return Shot((20, 8), b"\xff\xff\xff\0" * 160)


EDITOR_IN_FRONT = Placed("editor", "x", Box(100, 0, 104, 4), Box(100, 0, 104, 4))


def behind(left: int, **changes: Any) -> list[Placed]:
    """The editor in front of a safe from `left` to 108, which it hides up to 104."""
    return [EDITOR_IN_FRONT, Placed("KeePassXC", "vault", Box(left, 1, 108, 3))._replace(**changes)]


def test_excluded_windows_behind_the_front_one_are_blanked_where_they_are_visible() -> None:
    looks = iter([behind(102), behind(105)])  # it moves during the grab
    (shot,) = Capturer(EXCLUDING, Wide, lambda: Foreground("editor", "x"), on_screens=lambda: next(looks)).capture()
    with Image.open(BytesIO(shot.data)) as picture:
        black = {(x, y) for x in range(20) for y in range(8) if picture.getpixel((x, y)) == (0, 0, 0)}
    assert black == {(x, y) for x in range(8, 16) for y in range(2, 6)}


def test_a_screen_is_dropped_while_the_place_of_an_excluded_window_is_unknown() -> None:
    front = Foreground("editor", "x")
    capturer = Capturer(EXCLUDING, Wide, lambda: front, on_screens=lambda: behind(1, box=None))
    assert [shot.data for shot in capturer.capture()] == [b""]


def test_exclusions_stop_the_capture_if_the_windows_are_unknown() -> None:
    with pytest.raises(UserError, match="cannot list its windows"):
        Capturer(EXCLUDING, Screens, Foreground, on_screens=lambda: None).capture()
    assert len(Capturer(FREE, Screens, Foreground, on_screens=lambda: None).capture()) == 2


def test_the_list_of_windows_of_macos_is_parsed() -> None:
    rows = '[["Safari", "News", 0, 25.5, 800, 600, true], ["Dock", "", 0, 0, 1440, 900, false]]'
    page = Box(0, 25, 800, 625)
    assert desktop.of_mac(rows) == [Placed("Safari", "News", page, page), Placed("Dock", "", Box(0, 0, 1440, 900))]
    assert desktop.of_mac("") is desktop.of_mac("[[1]]") is None


def test_exclusions_stop_the_capture_if_the_front_program_is_unknown() -> None:
    screens = Screens()
    with pytest.raises(UserError, match="xprop") as error:
        Capturer(EXCLUDING, lambda: screens, lambda: None).capture()
    assert error.value.code == "no_foreground"
    assert screens.grabbed == []
    (shot, _) = Capturer(FREE, lambda: screens, lambda: None).capture()
    assert (shot.frame.app, shot.frame.window_title) == ("", "")


def test_a_missing_display_is_an_error_with_advice() -> None:
    def none() -> Any:
        raise ScreenShotError("cannot open display")

    with pytest.raises(UserError, match="watch its folder") as error:
        Capturer(FREE, none)
    assert error.value.code == "no_display"


@pytest.mark.parametrize(
    ("how", "reason"),
    [(ScreenShotError("connection lost"), "connection lost"), (AssertionError(), "the display disappeared")],
)
def test_a_display_that_disappears_is_an_error_with_advice(how: Exception, reason: str) -> None:
    class Broken(Screens):
        def grab(self, monitor: int, /) -> Shot:
            raise how

    with pytest.raises(UserError, match=reason):
        Capturer(FREE, Broken, Foreground).capture()


@pytest.mark.parametrize(
    ("output", "front"),
    [
        (
            'WM_CLASS = "navigator", "Firefox"\n_NET_WM_NAME = "Straße \\"A\\" — 屏幕"\nWM_NAME = "old"',
            Foreground("Firefox", 'Straße "A" — 屏幕'),
        ),
        (
            'WM_CLASS(STRING) = "xterm", "XTerm"\n_NET_WM_NAME:  not found.\nWM_NAME(STRING) = "xterm"',
            Foreground("XTerm", "xterm"),
        ),
        (r'_NET_WM_NAME = "Stra\303\237e \\ \"345\" \345\261\217"', Foreground("", 'Straße \\ "345" 屏')),
        (r'WM_NAME = "Stra\337e"', Foreground("", "Straße")),
        ("WM_CLASS:  not found.\nWM_NAME:  not found.", Foreground()),
        ("", Foreground()),
    ],
)
def test_the_output_of_xprop_is_parsed(output: str, front: Foreground) -> None:
    assert of_xprop(output) == front


@pytest.mark.skipif(sys.platform != "linux", reason="X11")
def test_without_a_display_the_foreground_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    assert foreground.foreground() is None
