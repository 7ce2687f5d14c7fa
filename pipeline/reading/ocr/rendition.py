"""The picture of a page as a model wants it: its size, format and turn, and the facts that its file is stored with."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

MAX_WORDS = 3_000
_MAX_SIDE = 20_000


@dataclass(frozen=True)
class Rendition:
    """How to draw a page. A PDF page is drawn at `dpi`, or with `longest` so that its longest side has that many
    pixels; a picture file only shrinks to `longest`, and otherwise keeps its own size.

    Then the sides grow to a `shortest` side (without `dpi` and `longest`: exactly that) and to `least_pixels`, shrink
    to `most_pixels`, and become multiples of `multiple`. `exact`: this size, whatever the page's shape.
    """

    dpi: float = 150.0
    longest: int = 0
    shortest: int = 0
    least_pixels: int = 0
    most_pixels: int = 0
    multiple: int = 1
    exact: tuple[int, int] | None = None
    format: Literal["auto", "png", "jpeg"] = "auto"
    """`auto`: PNG for drawings of few colours, otherwise JPEG."""
    turn: int = 0
    """Anticlockwise: 0, 90, 180 or 270 degrees."""

    @property
    def is_plain(self) -> bool:
        """Whether any picture of the page will do."""
        return replace(self, dpi=0.0) == Rendition(0.0)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Rendition":
        """Return the rendition that `asdict` wrote, also if it has passed through JSON."""
        return cls(**{**data, "exact": tuple(data["exact"]) if data["exact"] else None})

    def scaled(self, factor: float) -> Self:
        """Return this with sides `factor` times as long; an exact size stays."""
        return replace(
            self,
            dpi=self.dpi * factor,
            longest=round(self.longest * factor),
            shortest=round(self.shortest * factor),
            least_pixels=round(self.least_pixels * factor**2),
            most_pixels=round(self.most_pixels * factor**2),
        )

    def scale(self, width: float, height: float, max_pixels: int, *, is_drawn: bool) -> float:
        """Return the picture's pixels for each point of a PDF page (`is_drawn`), or for each pixel of a picture file.
        It has at most `max_pixels` pixels. `width`, `height`: of the page or the file."""
        width, height = max(width, 0.01), max(height, 0.01)
        long, short = max(width, height), min(width, height)
        if self.exact:
            return max(self.exact[0] / width, self.exact[1] / height)
        scale = self.dpi / 72 if is_drawn else 1.0
        if self.longest:
            scale = self.longest / long if is_drawn else min(1.0, self.longest / long)
        elif self.shortest and not self.dpi:
            scale = self.shortest / short
        scale = max(scale, self.shortest / short) if not self.longest else scale
        scale = max(scale, math.sqrt(self.least_pixels / (width * height)))
        most = min(self.most_pixels or max_pixels, max_pixels)
        return min(scale, math.sqrt(most / (width * height)), _MAX_SIDE / long)

    def fitted(self, width: int, height: int, max_pixels: int) -> tuple[int, int]:
        """Return the size of a picture that was drawn to `scale`: exact, or with sides that are multiples."""
        if self.exact:
            return self.exact
        if self.multiple == 1:
            return width, height
        most = min(self.most_pixels or max_pixels, max_pixels)
        sides = [max(self.multiple, round(side / self.multiple) * self.multiple) for side in (width, height)]
        if sides[0] * sides[1] > most:
            sides = [max(self.multiple, side // self.multiple * self.multiple) for side in (width, height)]
        return sides[0], sides[1]


@dataclass(frozen=True)
class PictureFacts:
    """The facts of a page's picture, in a file beside it: its size in pixels, and the page's in `unit` ("pt" or
    "px"). `blank`: whether it is blank; None if there is a little on it, which may be dirt. `words`: the first
    `MAX_WORDS` words of the page's text layer; none if it has no usable one."""

    rendition: Rendition
    width: int
    height: int
    page_width: float
    page_height: float
    unit: str
    blank: bool | None = None
    words: Sequence[str] = ()

    def write(self, picture: Path) -> None:
        """Store the facts of the file `picture`. Raises `OSError`."""
        _beside(picture).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, picture: Path) -> "PictureFacts | None":
        """Return the facts of the file `picture`; None if they are unknown."""
        try:
            data: dict[str, Any] = json.loads(_beside(picture).read_text(encoding="utf-8"))
            return cls(Rendition.of(data.pop("rendition")), **data)
        except (OSError, ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True)
class Picture:
    """An encoded picture for a model, and its size in pixels; 0 if unknown."""

    data: bytes
    media_type: str
    width: int = 0
    height: int = 0

    @property
    def pixels(self) -> int:
        return self.width * self.height


def _beside(picture: Path) -> Path:
    return picture.with_suffix(f"{picture.suffix}.json")
