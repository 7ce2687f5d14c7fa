"""Pictures of a desktop, drawn with Pillow, that differ in one detail."""

import hashlib
import random
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO

from PIL import Image, ImageDraw, ImageFont

FULL_HD = (1920, 1080)
TEXT = (
    "The pump station was checked at nine and again at noon.",
    "Pressure in the second line fell by four bar,",
    "most likely because of the new valve near the mill.",
    "",
    "Until it is replaced, the intake is kept half open.",
    "def flow(area: float, speed: float) -> float:",
    '    """Cubic metres a second."""',
    "    return area * speed",
    "",
    "We order three seals and one gasket from the shop;",
    "delivery takes about a week.",
    "Ann asks for the survey.",
)
TYPED = "Maintenance of the lower gate is planned for Thursday."
SIDEBAR = ("Inbox", "Drafts", "Projects", "  Weir survey", "  Pump station", "Archive", "Contacts", "Notes", "Trash")
LINE_PX = 24


@dataclass(frozen=True)
class Desktop:
    """The content of a screen. If a field changes, all else in the picture stays the same to the pixel."""

    lines: int = 26
    """Lines of text in the window."""
    scrolled: int = 0
    typed: str = ""
    """A line below the others."""
    clock: str = "09:41"
    cursor: tuple[int, int] = (900, 500)
    dialog: str = ""
    title: str = "report.txt - Editor"
    seed: int = 0
    """Another text, of the same kind."""
    dark: bool = False
    size: tuple[int, int] = FULL_HD

    def but(self, **changes: object) -> "Desktop":
        return replace(self, **changes)  # type: ignore[arg-type]  # the fields' own names


def draw(desktop: Desktop = Desktop()) -> Image.Image:
    """The screen as RGB."""
    width, height = desktop.size
    paper, ink, bar = ("#1e1f22", "#d4d4d4", "#2f3136") if desktop.dark else ("white", "#202020", "#e6e8eb")
    image = Image.new("RGB", desktop.size, paper)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, width, 34), fill=bar)
    pen.text((14, 7), desktop.title, fill=ink, font=font(16))
    pen.text((14, 42), "File   Edit   View   Insert   Tools   Help", fill=ink, font=font(15))
    pen.rectangle((0, 68, 260, height - 40), fill=bar)
    for row, name in enumerate(SIDEBAR):
        pen.text((20, 84 + row * 30), name, fill=ink, font=font(16))
    body = lines_of(desktop)
    for row, line in enumerate(body[: (height - 130) // LINE_PX]):
        pen.text((284, 80 + row * LINE_PX), line, fill=ink, font=font(17))
    pen.rectangle((0, height - 40, width, height), fill="#27323f")
    for place in range(6):
        pen.rounded_rectangle(
            (16 + place * 52, height - 34, 44 + place * 52, height - 6), 5, fill=f"hsl({place * 55},60%,55%)"
        )
    pen.text((width - 80, height - 32), desktop.clock, fill="white", font=font(18))
    if desktop.dialog:
        _dialog(pen, desktop)
    x, y = desktop.cursor
    pen.polygon(((x, y), (x, y + 17), (x + 4, y + 13), (x + 11, y + 12)), fill="black", outline="white")
    return image


def lines_of(desktop: Desktop) -> list[str]:
    """Return the lines of text that its window shows."""
    picker = random.Random(desktop.seed)
    text = [picker.choice(TEXT) + " " + picker.choice(TEXT) for _ in range(200)]
    shown = text[desktop.scrolled : desktop.scrolled + desktop.lines]
    return [*shown, desktop.typed] if desktop.typed else shown


def noise(name: str, side: int = 64) -> Image.Image:
    """Return a small picture that is far (some 128 of 256 bits) from that of any other name."""
    grey = random.Random(hashlib.sha256(name.encode()).digest()).randbytes(side * side)
    return Image.frombytes("L", (side, side), grey)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    """Return the picture as a file's bytes."""
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, which is the same on every machine."""
    return ImageFont.load_default(size)


def _dialog(pen: ImageDraw.ImageDraw, desktop: Desktop) -> None:
    left, top = desktop.size[0] // 2 - 240, desktop.size[1] // 2 - 90
    pen.rectangle((left, top, left + 480, top + 180), fill="#f5f5f5", outline="#606060", width=2)
    pen.text((left + 24, top + 30), desktop.dialog, fill="black", font=font(18))
    for place, name in enumerate(("Cancel", "Save")):
        pen.rectangle((left + 240 + place * 110, top + 126, left + 340 + place * 110, top + 160), fill="#3b82f6")
        pen.text((left + 258 + place * 110, top + 132), name, fill="white", font=font(16))
