"""Pictures that carry a number, so that a provider knows the page."""

import base64
import io

from PIL import Image, ImageDraw

from tests.support.provider_server import Record

BITS = 10
_BAR = 60


def picture(number: int) -> Image.Image:
    """Return a white picture with `number` in its upper half: a black bar for each 1 bit, after a first black bar."""
    image = Image.new("RGB", (_BAR * (BITS + 2), 400), "white")
    draw = ImageDraw.Draw(image)
    for place, bit in enumerate(f"1{number:0{BITS}b}"):
        if bit == "1":
            draw.rectangle((place * _BAR, 0, (place + 1) * _BAR - 1, 200), fill="black")
    return image


def read(record: Record) -> int:
    """Return the number in the picture of a call."""
    parts = [
        part
        for message in record.body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    url = next(part["image_url"]["url"] for part in parts if part["type"] == "image_url")
    image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("L")
    width, pixels = image.width / (BITS + 2), image.load()
    assert pixels
    seen = [pixels[int((place + 0.5) * width), image.height // 8] for place in range(1, BITS + 1)]
    return int("".join("1" if isinstance(grey, int) and grey < 128 else "0" for grey in seen), 2)
