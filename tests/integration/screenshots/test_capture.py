"""A worker with a display captures the configured sources; beat launches one message at a time."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import mss
import pytest
from PIL import Image

from pipeline.engine.errors import UserError
from pipeline.engine.metrics import queue_depths
from pipeline.flows.screenshots.frames import desktop
from pipeline.flows.screenshots.frames.capture import Captured, Capturer
from pipeline.flows.screenshots.frames.foreground import Foreground
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.frames.windows import WindowGrabber, find
from pipeline.flows.screenshots.live_settings import CAPTURE
from pipeline.flows.screenshots.models import BATCHES, REJECTIONS, SHOTS
from pipeline.flows.screenshots.rules.exposure import Box
from pipeline.flows.screenshots.scopes import Scope
from pipeline.flows.screenshots.work.capture import Captures
from pipeline.settings import ScreenshotSettings
from pipeline.storage.context import Context
from tasks import screenshots
from tasks.screenshots import canvas
from tests.integration.screenshots.conftest import rows_of
from tests.support.frames import encoded, noise
from tests.support.waiting import wait_until


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES": '["screen:1", "screen:2", "window:Mail"]',
        "PENSTOCK_SCREENSHOTS__CAPTURE_INTERVAL_S": "60",
        "PENSTOCK_SCREENSHOTS__BATCH_SIZE": "1",
    }


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


class Display:
    """A screen, an excluded screen, and no window; or no display while `gone`."""

    gone = False

    def __init__(self, rules: ScreenshotSettings) -> None:
        self.closed = False

    def capture(self, sources: Sequence[str]) -> list[Captured]:
        if Display.gone:
            raise UserError("cannot capture the screens", code="no_display")
        at = datetime.now(UTC)
        shown = encoded(noise(f"at {at}"))
        return [Captured(Frame("screen:1", at, "Mail", "Inbox"), shown), Captured(Frame("screen:2", at, "Safe"), b"")]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Display, "gone", False)
    monkeypatch.setattr(canvas, "ON_SCREEN", Captures(Display))  # type: ignore[arg-type]


def test_repeated_ticks_launch_one_capture_and_its_frames_are_batched(context: Context, display: None) -> None:
    assert screenshots.status().capture is not None
    canvas.tick.apply()
    assert queue_depths(context.redis, [CAPTURE]) == {CAPTURE: 1}
    canvas.tick.apply()
    canvas.TASKS.launch(Scope.CAPTURES)
    assert queue_depths(context.redis, [CAPTURE]) == {CAPTURE: 1}, "no worker captures yet, so no messages accumulate"
    captured = canvas.capture.apply().result  # `get` refuses if an earlier test ran a pool of Celery
    (shot,) = rows_of(context, SHOTS)
    assert (shot.source_key, shot.app, shot.window_title) == ("screen:1", "Mail", "Inbox")
    assert [(row.source_key, row.reason) for row in rows_of(context, REJECTIONS)] == [("screen:2", "excluded")]
    assert captured == ["screen:1"], "the argument of the chain's next message"
    canvas.batch.apply([captured])
    assert len(rows_of(context, BATCHES)) == 1


def test_status_names_captured_sources_missing_ones_and_errors(context: Context, display: None) -> None:
    def latest() -> tuple[float | None, list[str], str]:
        capture = screenshots.status().capture
        assert capture is not None
        return capture.last_s, capture.missing, capture.error

    assert latest() == (None, [], "")
    canvas.capture.apply()
    last_s, absent, error = latest()
    assert last_s is not None
    assert (absent, error) == (["window:Mail"], "")
    Display.gone = True
    canvas.capture.apply()
    assert latest()[1:] == ([], "cannot capture the screens")
    Display.gone = False
    canvas.capture.apply()
    assert latest()[1:] == (["window:Mail"], ""), "the display is back"


@pytest.fixture
def x11(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A display with two windows, one before the other."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> None:
        with (tmp_path / f"{command[0]}.log").open("ab") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log))

    display = tmp_path / "display"
    with display.open("wb") as pipe:
        server = ["Xvfb", "-screen", "0", "800x600x24", "-nolisten", "tcp", "-displayfd", str(pipe.fileno())]
        started.append(subprocess.Popen(server, pass_fds=[pipe.fileno()], stderr=subprocess.DEVNULL))
    wait_until(lambda: display.read_text().endswith("\n"), 60, "the display is up")
    monkeypatch.setenv("DISPLAY", f":{display.read_text().strip()}")
    for name, color, place in (("Below", "red", "+50+50"), ("Above", "blue", "+150+100")):
        run("xmessage", "-name", name, "-geometry", f"300x200{place}", "-bg", color, name)
        wait_until(lambda name=name: bool(_number(name)), 60, f"the window {name} is shown")
    yield
    for process in reversed(started):
        process.kill()
        process.wait()


def _number(name: str) -> str:
    output = subprocess.run(["xwininfo", "-name", name], capture_output=True, check=False).stdout.decode()
    return output.partition("Window id: ")[2].partition(" ")[0] if "IsViewable" in output else ""


@pytest.mark.skipif(not all(map(shutil.which, ("Xvfb", "xmessage", "xprop", "xwininfo"))), reason="needs Xvfb")
def test_a_capture_shows_the_whole_window_behind_another(x11: None) -> None:
    below, above = _number("Below"), _number("Above")
    listed = ["-f", "_NET_CLIENT_LIST_STACKING", "32x", "-set", "_NET_CLIENT_LIST_STACKING", f"{below},{above}"]
    subprocess.run(["xprop", "-root", *listed], check=True)
    # With their borders.
    places = [("Above", Box(150, 100, 452, 302)), ("Below", Box(50, 50, 352, 252))]
    assert [(window.title, window.box) for window in desktop.windows() or ()] == places
    front = find("xmessage")
    assert front is not None
    assert (hex(front.number), front.title) == (above, "Above")
    assert find("nothing") is find("0x1") is None
    grabber = WindowGrabber()
    try:
        seen = grabber.grab(int(below, 16))
        assert seen is not None
        assert seen.size == (300, 200)
        red = sum(seen.bgra[at : at + 3] == b"\0\0\xff" for at in range(0, len(seen.bgra), 4))
        assert red > 40_000, "no part of the blue window"
        assert grabber.grab(0x999999) is None
    finally:
        grabber.close()
    rules = ScreenshotSettings(excluded_titles=["below"])
    with Capturer(rules, mss.MSS, in_front=Foreground) as capturer:
        (hidden,) = capturer.capture()
    with Image.open(BytesIO(hidden.data)) as picture:
        colors = {color for _, color in picture.getcolors() or ()}
    assert (0, 0, 255) in colors
    assert (255, 0, 0) not in colors
