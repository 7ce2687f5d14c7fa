"""Pictures of screens: legible text on a pattern that differs from all others."""

import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont


def desk(path: Path, *lines: str, seed: int = 0) -> Path:
    """Return a screen with these lines of text. Pictures of different seeds are not duplicates."""
    image = Image.new("RGB", (1280, 720), "white")
    pen = ImageDraw.Draw(image)
    dice = random.Random(seed)
    for row in range(9):
        for column in range(16):
            shade = dice.randint(30, 255)
            box = (column * 80, 360 + row * 40, column * 80 + 80, 400 + row * 40)
            pen.rectangle(box, fill=(shade, shade, dice.randint(30, 255)))
    for row, line in enumerate(lines):
        pen.text((60, 40 + row * 50), line, fill="black", font=ImageFont.load_default(size=32))
    image.save(path)
    return path
