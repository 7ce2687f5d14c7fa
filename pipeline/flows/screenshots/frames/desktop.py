"""Lists the windows on the screens: by xprop and xwininfo on X11, by osascript on macOS, by system calls on Windows."""

import json
import re
import sys
from typing import Any

from pipeline.flows.screenshots.frames.foreground import of_xprop, output_of, stacked, values_of, windows_name, xprop
from pipeline.flows.screenshots.rules.exposure import Box, Placed

_MAC = """ObjC.import("CoreGraphics")
const windows = ObjC.deepUnwrap(ObjC.castRefToObject($.CGWindowListCopyWindowInfo(17, 0)))
JSON.stringify(windows.map(each => {
  const {X, Y, Width, Height} = each.kCGWindowBounds
  const isOpaque = each.kCGWindowAlpha >= 1 && each.kCGWindowLayer === 0
  return [each.kCGWindowOwnerName || "", each.kCGWindowName || "", X, Y, Width, Height, isOpaque]
}))"""
"""17: those on the screens, without the desktop. Layers above 0 have transparent windows as large as the screen, such
as that of the Dock."""
_PROPERTIES = (
    *("WM_CLASS", "_NET_WM_NAME", "WM_NAME"),
    *("_NET_WM_STATE", "_NET_WM_DESKTOP", "_NET_WM_WINDOW_OPACITY", "_NET_FRAME_EXTENTS", "_NET_WM_OPAQUE_REGION"),
)
_GEOMETRY = ("Absolute upper-left X", "Absolute upper-left Y", "Width", "Height", "Depth", "Border width")
_EVERYWHERE = _OPAQUE = 0xFFFFFFFF
_WITH_ALPHA = 32
"""The depth of windows with translucent pixels."""


def windows() -> list[Placed] | None:
    """Return the windows on the screens, the front one first; None if this machine cannot list them."""
    if sys.platform == "win32":
        return _of_windows()
    if sys.platform == "darwin":
        return of_mac(output_of("osascript", "-l", "JavaScript", "-e", _MAC) or "")
    return _of_x11()


def of_mac(output: str) -> list[Placed] | None:
    """Parse the list of the script for macOS; None if it is invalid."""
    try:
        rows = json.loads(output)
        return [_of_mac(*row) for row in rows]
    except (ValueError, TypeError):
        return None


def _of_mac(app: str, title: str, left: float, top: float, width: float, height: float, is_opaque: bool) -> Placed:
    box = Box(int(left), int(top), int(left + width), int(top + height))
    return Placed(app, title, box, box if is_opaque else None)


def _of_x11() -> list[Placed] | None:
    numbers = stacked()
    if numbers is None:
        return None
    root = values_of(xprop("-root", "-notype", "_NET_CURRENT_DESKTOP") or "")
    desktop = _number(root.get("_NET_CURRENT_DESKTOP", ""), _EVERYWHERE)
    return [window for number in numbers if (window := _x11_window(number, desktop)) is not None]


def _x11_window(number: str, desktop: int) -> Placed | None:
    """Return a window of X11; None if it is closed, minimised or on another desktop."""
    output = xprop("-id", number, "-notype", *_PROPERTIES)
    if output is None:
        return None
    values, named = values_of(output), of_xprop(output)
    at = _number(values.get("_NET_WM_DESKTOP", ""), _EVERYWHERE)
    is_elsewhere = at != desktop and _EVERYWHERE not in {at, desktop}
    if is_elsewhere or "_NET_WM_STATE_HIDDEN" in values.get("_NET_WM_STATE", ""):
        return None
    lines = (output_of("xwininfo", "-id", number, env={"LC_ALL": "C"}) or "").splitlines()
    # The window's own title comes before its geometry, and may imitate it: the last value counts.
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        x, y, width, height, depth, border = (int(facts[name]) for name in _GEOMETRY)
    except (KeyError, ValueError):
        return Placed(*named, None)
    left, right, top, bottom = _numbers(values.get("_NET_FRAME_EXTENTS", "")) or (0, 0, 0, 0)
    box = Box(x - left, y - top, x + width + 2 * border + right, y + height + 2 * border + bottom)
    cover: Box | None = box
    if depth == _WITH_ALPHA:  # it has rounded corners and shadows, or is translucent
        region = _numbers(values.get("_NET_WM_OPAQUE_REGION", ""))
        cover = _box(x, y, *region) if region else None
    if _number(values.get("_NET_WM_WINDOW_OPACITY", ""), _OPAQUE) != _OPAQUE:
        cover = None
    return Placed(*named, box, cover)


def _box(x: int, y: int, left: int, top: int, width: int, height: int) -> Box:
    return Box(x + left, y + top, x + left + width, y + top + height)


def _numbers(text: str) -> list[int]:
    """Return the first four numbers of a list; empty for fewer."""
    numbers = [int(number) for number in re.findall(r"\d+", text)[:4]]
    return numbers if len(numbers) == 4 else []


def _number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() else default


def _of_windows() -> list[Placed] | None:
    if sys.platform != "win32":
        return None
    import ctypes  # noqa: PLC0415  # its Windows part exists on Windows only
    from ctypes import wintypes  # noqa: PLC0415

    user, manager = ctypes.windll.user32, ctypes.windll.dwmapi
    cloaked, frame_bounds, style = 14, 9, -20
    translucent = 0x80000 | 0x20 | 0x200000
    """Layered, transparent, and drawn by the compositor alone: such a window may hide nothing."""
    found: list[Placed] = []

    def note(window: int, _: Any) -> bool:
        hidden, rect = wintypes.DWORD(), wintypes.RECT()
        manager.DwmGetWindowAttribute(window, cloaked, ctypes.byref(hidden), ctypes.sizeof(hidden))
        if not user.IsWindowVisible(window) or user.IsIconic(window) or hidden.value:
            return True
        failed = manager.DwmGetWindowAttribute(window, frame_bounds, ctypes.byref(rect), ctypes.sizeof(rect))
        box = None if failed else Box(rect.left, rect.top, rect.right, rect.bottom)
        may_shine_through = user.GetWindowLongW(window, style) & translucent
        found.append(Placed(*windows_name(window), box, None if may_shine_through else box))
        return True

    # It lists the window in front first.
    listed = user.EnumWindows(ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.HWND, wintypes.LPARAM)(note), 0)
    return found if listed else None
