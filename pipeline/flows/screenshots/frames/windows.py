"""Single windows of X11: which there are, and their pictures, also of those that stand behind others."""

import re
import sys
import time
from ctypes import (
    POINTER,
    Structure,
    addressof,
    byref,
    c_int,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_void_p,
    sizeof,
)
from typing import Any, NamedTuple

from mss.exception import ScreenShotError

from pipeline.engine.errors import UserError
from pipeline.flows.screenshots.frames.foreground import of_xprop, xprop

SETTLE_S = 0.3
"""How long a program may take to draw what other windows hid until now."""
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+", re.IGNORECASE)
_ALL_PLANES, _AUTOMATIC, _REDIRECT_WINDOW, _CHECKED = 0xFFFFFFFF, 0, 1, 1


class Window(NamedTuple):
    """One that a program opened. `number`: as `xwininfo` tells it."""

    number: int
    app: str
    title: str


class Picture(NamedTuple):
    """Four bytes a pixel: blue, green, red, and one without meaning."""

    size: tuple[int, int]
    bgra: bytes


def find(name: str) -> Window | None:
    """The window of this number (`0x2a00007`), or the foremost one of the program of this name, in any case.

    None if there is none now. Raises `UserError` where windows cannot be told.
    """
    asked = ("-root", "-notype", "32x", " $0+\\n", "_NET_CLIENT_LIST_STACKING")
    listed = xprop(*asked) if sys.platform == "linux" else None
    if listed is None:
        raise UserError(
            "windows cannot be told apart here: on Linux with X11, install xprop; elsewhere, capture screens",
            code="no_windows",
        )
    if _NUMBER.fullmatch(name):
        return _window(int(name, 0))
    # From the lowest to the one in front.
    for number in reversed(re.findall(r"0x[0-9a-f]+", listed)):
        window = _window(int(number, 16))
        if window is not None and window.app.casefold() == name.casefold():
            return window
    return None


def _window(number: int) -> Window | None:
    said = xprop("-id", hex(number), "-notype", "WM_CLASS", "_NET_WM_NAME", "WM_NAME")
    return None if said is None else Window(number, *of_xprop(said))


class WindowGrabber:
    """Takes pictures of windows over a connection of its own.

    Each window is drawn beside the screen for as long as the connection lasts: a picture then has all of the window,
    and nothing of what stands before it. Raises `ScreenShotError` or `OSError` without a display, and `UserError` if
    the display cannot draw so.
    """

    def __init__(self) -> None:
        from mss.linux import xcb, xcbhelpers  # noqa: PLC0415  # they load libraries that only Linux has

        self._xcb: Any = xcb
        self._errors = xcbhelpers.XProtoError
        self._connection = xcb.connect()[0]
        self._composite = xcbhelpers.XcbExtension(b"Composite", 0)
        self._send = xcbhelpers.LIB.xcb.xcb_send_request
        self._send.argtypes = [c_void_p, c_int, POINTER(_Part), POINTER(_Request)]
        self._send.restype = c_uint
        self._cookie = xcbhelpers.VoidCookie
        self._redirected: set[int] = set()
        if not xcb.get_extension_data(self._connection, self._composite).present:
            self.close()
            raise UserError("windows cannot be captured: this display has no Composite extension", code="no_windows")

    def close(self) -> None:
        self._xcb.disconnect(self._connection)

    def grab(self, number: int) -> Picture | None:
        """None if it is not shown, or gone."""
        try:
            return self._grab(number)
        except self._errors:
            self._redirected.discard(number)
            return None

    def _grab(self, number: int) -> Picture:
        if number not in self._redirected:
            self._redirect(number)
            self._redirected.add(number)
            time.sleep(SETTLE_S)
        window = self._xcb.Window(number)
        shape = self._xcb.get_geometry(self._connection, window)
        image = self._xcb.get_image(
            self._connection, self._xcb.ImageFormat.ZPixmap, window, 0, 0, shape.width, shape.height, _ALL_PLANES
        )
        data = bytes(self._xcb.get_image_data(image))
        if len(data) != shape.width * shape.height * 4:
            raise ScreenShotError(f"a window of color depth {shape.depth} cannot be captured")
        return Picture((shape.width, shape.height), data)

    def _redirect(self, number: int) -> None:
        body = _RedirectWindow(0, 0, 0, number, _AUTOMATIC)
        # The two parts before ours are room that xcb asks for.
        parts = (_Part * 4)(_Part(), _Part(), _Part(addressof(body), sizeof(body)), _Part())
        request = _Request(2, addressof(self._composite), _REDIRECT_WINDOW, True)
        sequence = self._send(byref(self._connection), _CHECKED, byref(parts[2]), byref(request))
        self._cookie(sequence).check(self._connection)


class _RedirectWindow(Structure):
    """The request of the Composite extension, as it is sent."""

    _fields_ = (
        ("major", c_uint8),
        ("minor", c_uint8),
        ("length", c_uint16),
        ("window", c_uint32),
        ("update", c_uint8),
        ("unused", c_uint8 * 3),
    )


class _Part(Structure):
    """`struct iovec`."""

    _fields_ = (("base", c_void_p), ("length", c_size_t))


class _Request(Structure):
    """`xcb_protocol_request_t`."""

    _fields_ = (("count", c_size_t), ("extension", c_void_p), ("opcode", c_uint8), ("is_void", c_uint8))
