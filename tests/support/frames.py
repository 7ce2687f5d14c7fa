"""Screenshots as files: real pictures, each far from every other for a perceptual hash."""

import random
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE = (640, 400)
_CELLS = (8, 5)


def frame(number: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """Frame `number`: a window of coloured panes and its number in words; the same for the same number."""
    chance = random.Random(number)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    width, height = size[0] / _CELLS[0], size[1] / _CELLS[1]
    for column in range(_CELLS[0]):
        for row in range(_CELLS[1]):
            left, top = column * width, row * height
            shade = chance.choice((20, 90, 160, 240))
            draw.rectangle((left, top, left + width, top + height), fill=(shade, shade, chance.choice((30, 200))))
    draw.rectangle((0, 0, size[0], 44), fill="white")
    draw.text((12, 4), f"Frame {number}", fill="black", font=_font())
    return image


def frame_bytes(number: int, suffix: str = ".png", size: tuple[int, int] = SIZE) -> bytes:
    """Frame `number` as a file."""
    out = BytesIO()
    frame(number, size).save(out, "JPEG" if suffix in {".jpg", ".jpeg"} else "PNG")
    return out.getvalue()


def frame_file(folder: Path, number: int, suffix: str = ".png") -> Path:
    """Frame `number` in a file of its own."""
    path = folder / f"frame-{number:05}{suffix}"
    path.write_bytes(frame_bytes(number, suffix))
    return path


@lru_cache(maxsize=1)
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(32)
