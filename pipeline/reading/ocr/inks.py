"""Remove coloured ink, as of stamps and markers, from pictures, so that black text below it can be read."""

from PIL import Image, ImageChops, ImageOps, ImageStat

_SIDE_PX = 600  # of the smaller picture used to measure colours
_COLOURED = 70  # of 255, between the brightest and the darkest channel
_LIT = 110  # of 255: the brightest channel of a colour; black ink has none
_LEAST, _MOST = 0.002, 0.3
"""The share of coloured pixels that suggests a stamp: less is noise, more is a photograph."""


def has_colour(picture: Image.Image) -> bool:
    """Whether an RGB picture is printed in colour in some part, but not all over: it may have a coloured stamp."""
    small = picture.copy()
    small.thumbnail((_SIDE_PX, _SIDE_PX))
    red, green, blue = small.split()
    brightest = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    darkest = ImageChops.darker(ImageChops.darker(red, green), blue)
    saturated = ImageChops.subtract(brightest, darkest).point(lambda value: 255 if value >= _COLOURED else 0)
    lit = brightest.point(lambda value: 255 if value >= _LIT else 0)
    share = ImageStat.Stat(ImageChops.darker(saturated, lit)).mean[0] / 255
    return bool(_LEAST <= share <= _MOST)


def black_only(picture: Image.Image) -> Image.Image:
    """Return the RGB picture with coloured ink as light as possible: the brightest channel of each pixel."""
    red, green, blue = picture.split()
    brightest = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return ImageOps.autocontrast(brightest.point(lambda value: min(255, round(value * 1.35)))).convert("RGB")
