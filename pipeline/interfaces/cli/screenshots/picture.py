"""`penstock screenshots show --open`: opens a frame's picture in the desktop's program."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.output import err, one_line
from pipeline.interfaces.cli.screenshots import ids

if TYPE_CHECKING:
    from pipeline.flows.screenshots.views import ScreenshotView

GONE = {"deleted": "deleted after its retention time", "missing": "missing: another program removed it"}
"""Why a frame has no picture, by its storage state."""


def show(frames: "Sequence[ScreenshotView]") -> None:
    """Open, in the desktop's program, the picture of the first of these frames that has one; print its path, and the
    ids of the others with a picture.

    Raises `UserError` if no frame has a picture, or no program opens it.
    """
    stored = [(frame, frame.path) for frame in frames if frame.path is not None and frame.path.is_file()]
    if not stored:
        states = {f"{ids.frame(frame.id)} {GONE.get(frame.storage_state, GONE['missing'])}" for frame in frames}
        raise UserError(f"no picture left: {', '.join(sorted(states)) or 'no frames'}", code="no_picture")
    frame, path = stored[0]
    _open(path)
    others = ", ".join(ids.frame(other.id) for other, _ in stored[1:])
    err.print(f"Opened {ids.frame(frame.id)}: {one_line(str(path))}", soft_wrap=True)
    if others:
        err.print(f"Others of it: {others}", soft_wrap=True)


def _open(path: Path) -> None:
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    try:
        # Keep its output from mixing with our lines.
        done = subprocess.run(  # noqa: S603  # the path is of our own folder
            [opener, str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError:
        raise UserError(
            f"{opener}, which opens pictures, is not installed here: open {path}", code="no_viewer"
        ) from None
    if done.returncode:
        reason = f" ({done.stderr.strip()[:200]})" if done.stderr.strip() else ""
        raise UserError(f"{opener} found no program for the picture{reason}: open {path}", code="no_viewer")
