"""Frames of screens, at which only a child process looks: Pillow and text recognition read what somebody else made."""

from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.files.user_file import open_file
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import MODELS_SIDE_PX, Limits, Wanted

if TYPE_CHECKING:
    from pipeline.reading.ocr.fingerprint import Fingerprint

_CAPS = Limits(timeout_s=30, memory_mb=1_500)
"""A frame of 89 million pixels takes a second or two, and 0.6 GB."""


class SeenText(NamedTuple):
    """A line of text on a frame. Its sides are shares of the frame's, 0 to 1, from the top left."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


def read_frame(path: Path, wanted: Wanted = lambda: True) -> "Fingerprint":
    """What `fingerprint.read_frame` finds in this file.

    Raises `UnitError` as that does, or with code `too_slow`, `too_large` or `unreadable_file` if it was too much for
    the child, `missing` or `unreadable`; `Unwanted`.
    """
    from PIL import Image  # noqa: PLC0415  # only intake needs Pillow

    from pipeline.reading.ocr.fingerprint import Fingerprint  # noqa: PLC0415

    found = _ask("frame", path, _CAPS, wanted)
    sketch = Image.frombytes("L", (found["width"], found["height"]), b64decode(found["sketch"]))
    return Fingerprint(found["phash"], found["format"], sketch)


def jpeg_of(
    path: Path, max_side: int = MODELS_SIDE_PX, wanted: Wanted = lambda: True, *, gentle: bool = False
) -> bytes:
    """A frame as models get it, or of another size: `fingerprint.as_jpeg`; `gentle` as of `child.Session`.

    Raises `UnitError` as `read_frame`; `Unwanted`.
    """
    return b64decode(_ask("frame_jpeg", path, _CAPS, wanted, gentle=gentle, side=max_side)["jpeg"])


def lines_of(path: Path, limits: Limits, wanted: Wanted = lambda: True, *, gentle: bool = False) -> list[SeenText]:
    """The text that is recognised on a frame, within `limits`. Raises `UnitError` as `read_frame` and `ocr.read` do;
    `Unwanted`."""
    return [SeenText(*line) for line in _ask("frame_lines", path, limits, wanted, gentle=gentle)["lines"]]


def _ask(task: str, path: Path, limits: Limits, wanted: Wanted, *, gentle: bool = False, **told: int) -> dict[str, Any]:
    try:
        open_file(path).close()  # What the system says of it is told apart from what is wrong with the picture.
    except FileNotFoundError as error:
        raise UnitError(f"{path.name} is gone", kind=ErrorKind.PERMANENT, code="missing") from error
    except OSError as error:
        message = f"{path.name} cannot be read: {error.strerror}"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="unreadable") from error
    asked = {"task": task, "path": str(path.absolute()), **told}
    return child.ask_about_file(asked, "the picture", wanted, limits, advice="", gentle=gentle)
