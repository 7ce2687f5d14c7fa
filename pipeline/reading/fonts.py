"""What PDFium knows about fonts, as styles; asked once per font, not per character."""

import ctypes
import re
from typing import Any

import pypdfium2.raw as pdfium_c

from pipeline.reading.layout.model import Style

_BOLD = re.compile(r"bold|black|heavy|demi|extrab|medi(?:$|[^au])|(?:^|[-,])(?:eb|b|bd)$|CMBX|bx\d", re.IGNORECASE)
_ITALIC = re.compile(r"ital|obliq|slant|(?:^|[-,])it$|CMTI|CMMI|CMSL", re.IGNORECASE)
_MONO = re.compile(r"cour|mono|consol|typewriter|CMTT|inconsolata|menlo|fixed", re.IGNORECASE)
_REGULAR = re.compile(r"regul|roman|book|light|thin|normal", re.IGNORECASE)
_FIXED_PITCH, _ITALIC_FLAG, _FORCE_BOLD = 1, 1 << 6, 1 << 18
_BOLD_WEIGHT = 650
_FILLED_AND_STROKED = 2  # the render mode in which programs without a bold font make one


class Fonts:
    """The styles of one page's text objects."""

    def __init__(self) -> None:
        self._styles: dict[int, Style] = {}

    def style(self, text_object: Any) -> Style:
        """The style of the text object's font; plain if it has none."""
        font = pdfium_c.FPDFTextObj_GetFont(text_object)
        if not font:
            return Style()
        address = ctypes.cast(font, ctypes.c_void_p).value or 0
        style = self._styles.get(address)
        if style is None:
            style = self._styles[address] = _style(font)
        if pdfium_c.FPDFTextObj_GetTextRenderMode(text_object) == _FILLED_AND_STROKED:
            return style._replace(bold=True)
        return style


def _style(font: Any) -> Style:
    buffer = ctypes.create_string_buffer(128)
    length = pdfium_c.FPDFFont_GetBaseFontName(font, buffer, len(buffer))
    name = buffer.value.decode("utf-8", "replace") if 0 < length <= len(buffer) else ""
    name = re.sub(r"^[A-Z]{6}\+", "", name)
    flags = max(0, pdfium_c.FPDFFont_GetFlags(font))
    heavy = pdfium_c.FPDFFont_GetWeight(font) >= _BOLD_WEIGHT and not _REGULAR.search(name)
    return Style(
        bold=bool(_BOLD.search(name)) or bool(flags & _FORCE_BOLD) or heavy,
        italic=bool(_ITALIC.search(name)) or bool(flags & _ITALIC_FLAG),
        mono=bool(_MONO.search(name)) or bool(flags & _FIXED_PITCH),
        font=re.split(r"[-,]", name)[0],
    )
