"""Whether two frames that hash alike differ by a line of text: their pictures at an eighth of the size, cell by cell.

A hash of a whole screen cannot tell a typed word (2 to 28 bits of 256 on a 1080p window) from a cursor on text (0 to
10). A sketch can: each of its cells is the mean of 8 × 8 pixels, text changes several in a row, a cursor few.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from PIL import Image

CELL = 8
"""Pixels of a side. A JPEG is decoded at this scale in a tenth of the time."""
LEVELS = 12
"""A cell has changed if its grey did by more than that, of 255: less is the loss of a JPEG."""
RUN = 5
"""So many changed cells side by side are text: five characters. A cursor has two or three, a digit of a clock two."""


def differs(one: Image.Image, other: Image.Image) -> bool:
    """Whether more changed than a cursor or a digit here and there."""
    if one.size != other.size:
        return True
    before, after = (np.asarray(image, dtype=np.int16) for image in (one, other))
    changed = np.abs(before - after) > LEVELS
    width = changed.shape[1]
    if width < RUN:
        return bool(changed.any())
    run = changed[:, : width - RUN + 1].copy()
    for shift in range(1, RUN):
        run &= changed[:, shift : width - RUN + 1 + shift]
    return bool(run.any())


class Recent:
    """Sketches of the frames that were stored or compared with of late, by file name; safe between threads."""

    def __init__(self, at_most: int = 64) -> None:
        self._at_most = at_most
        self._kept: OrderedDict[str, Image.Image] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, file: str, sketch: Image.Image) -> None:
        with self._lock:
            self._kept[file] = sketch
            self._kept.move_to_end(file)
            while len(self._kept) > self._at_most:
                self._kept.popitem(last=False)

    def get(self, file: str, make: Callable[[], Image.Image]) -> Image.Image:
        """The sketch of this file; `make` reads it where we have none. What `make` raises goes to the caller."""
        with self._lock:
            found = self._kept.get(file)
        if found is None:
            found = make()
            self.keep(file, found)
        return found
