"""Read frames of screens in a child process alone: Pillow and text recognition must not read strangers' files here."""

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
    """A line of text on a frame. Its sides are shares of the frame, 0 to 1, from the top left."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


def read_frame(path: Path, wanted: Wanted = lambda: True) -> "Fingerprint":
    """Return the hash, format and sketch of a frame's picture, decoded in a child.

    Raises `Unwanted`, or `UnitError` with code `not_an_image`, `corrupt`, `too_many_pixels`, `missing` or `unreadable`;
    `too_slow`, `too_large` or `unreadable_file` if the file is too much for the child.
    """
    from PIL import Image  # noqa: PLC0415  # only intake needs Pillow

    from pipeline.reading.ocr.fingerprint import Fingerprint  # noqa: PLC0415

    facts = _ask("frame", path, _CAPS, wanted)
    sketch = Image.frombytes("L", (facts["width"], facts["height"]), b64decode(facts["sketch"]))
    return Fingerprint(facts["phash"], facts["format"], sketch)


def jpeg_of(
    path: Path, max_side: int = MODELS_SIDE_PX, wanted: Wanted = lambda: True, *, gentle: bool = False
) -> bytes:
    """Return a frame as the bytes of a JPEG for models, scaled so that its longer side has at most `max_side` pixels.

    `gentle`: use a child of low priority. Raises `Unwanted`, or `UnitError` if the file is missing, no picture, or too
    much for the child.
    """
    return b64decode(_ask("frame_jpeg", path, _CAPS, wanted, gentle=gentle, side=max_side)["jpeg"])


def lines_of(path: Path, limits: Limits, wanted: Wanted = lambda: True, *, gentle: bool = False) -> list[SeenText]:
    """Return the lines of text that recognition, in a child within `limits`, finds on a frame. `gentle`: use a child of
    low priority. Raises `Unwanted`, or `UnitError` if the file is missing, no picture or too much for the child, or
    recognition fails."""
    return [SeenText(*line) for line in _ask("frame_lines", path, limits, wanted, gentle=gentle)["lines"]]


def _ask(
    task: str, path: Path, limits: Limits, wanted: Wanted, *, gentle: bool = False, **facts: int
) -> dict[str, Any]:
    try:
        open_file(path).close()  # keeps system errors apart from bad pictures
    except FileNotFoundError as error:
        raise UnitError(f"{path.name} does not exist", kind=ErrorKind.PERMANENT, code="missing") from error
    except OSError as error:
        message = f"{path.name} cannot be read: {error.strerror}"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="unreadable") from error
    request = {"task": task, "path": str(path.absolute()), **facts}
    return child.ask_about_file(request, "the picture", wanted, limits, advice="", gentle=gentle)
