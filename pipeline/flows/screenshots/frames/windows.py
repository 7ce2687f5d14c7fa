"""Finds and captures single windows of X11, even behind other windows."""

import re
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
from pipeline.flows.screenshots.frames.foreground import of_xprop, stacked, xprop

SETTLE_S = 0.3
"""Seconds to let a program draw the parts that other windows hid."""
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+", re.IGNORECASE)
_ALL_PLANES, _AUTOMATIC, _REDIRECT_WINDOW, _CHECKED = 0xFFFFFFFF, 0, 1, 1


class Window(NamedTuple):
    """A program's window. `number`: its id, as `xwininfo` prints it."""

    number: int
    app: str
    title: str


class Picture(NamedTuple):
    """A picture with four bytes a pixel: blue, green, red and an unused byte."""

    size: tuple[int, int]
    bgra: bytes


def find(name: str) -> Window | None:
    """Return a window by its number (`0x2a00007`), or the front window of a program by the program's name, in any case.

    Returns None if no window matches. Raises `UserError` where this machine cannot list windows.
    """
    listed = stacked()
    if listed is None:
        raise UserError(
            "this machine cannot list windows: on Linux with X11, install xprop; elsewhere, capture screens",
            code="no_windows",
        )
    if _NUMBER.fullmatch(name):
        return _window(int(name, 0))
    for number in listed:
        window = _window(int(number, 16))
        if window is not None and window.app.casefold() == name.casefold():
            return window
    return None


def _window(number: int) -> Window | None:
    output = xprop("-id", hex(number), "-notype", "WM_CLASS", "_NET_WM_NAME", "WM_NAME")
    return None if output is None else Window(number, *of_xprop(output))


class WindowGrabber:
    """Captures windows over its own connection.

    While the connection lasts, the display draws each captured window off-screen: a picture has the whole window, and
    none of the windows before it. Raises `ScreenShotError` or `OSError` without a display, and `UserError` if the
    display cannot draw off-screen.
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
            raise UserError("cannot capture windows: this display has no Composite extension", code="no_windows")

    def close(self) -> None:
        self._xcb.disconnect(self._connection)

    def grab(self, number: int) -> Picture | None:
        """Capture a window; None if it is hidden or closed."""
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
            raise ScreenShotError(f"cannot capture a window of color depth {shape.depth}")
        return Picture((shape.width, shape.height), data)

    def _redirect(self, number: int) -> None:
        body = _RedirectWindow(0, 0, 0, number, _AUTOMATIC)
        # xcb uses the two parts before ours.
        parts = (_Part * 4)(_Part(), _Part(), _Part(addressof(body), sizeof(body)), _Part())
        request = _Request(2, addressof(self._composite), _REDIRECT_WINDOW, True)
        sequence = self._send(byref(self._connection), _CHECKED, byref(parts[2]), byref(request))
        self._cookie(sequence).check(self._connection)


class _RedirectWindow(Structure):
    """The wire format of the Composite extension's request."""

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
