"""Names the program and window in front: by xprop on X11, by osascript on macOS, by system calls on Windows."""

import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

LIMIT_S = 3.0
_MAC = """tell application "System Events"
set front to first application process whose frontmost is true
set title to ""
try
set title to name of front window of front
end try
return (name of front) & linefeed & title
end tell"""


class Foreground(NamedTuple):
    """The program and title in front. Empty strings: no window is in front, or it has no names."""

    app: str = ""
    title: str = ""


def foreground() -> Foreground | None:
    """Return the program and window in front; None if this machine cannot name them."""
    if sys.platform == "win32":
        return _windows()
    if sys.platform == "darwin":
        output = output_of("osascript", "-e", _MAC)
        return None if output is None else Foreground(*(*output.split("\n", 1), "")[:2])
    return _x11() if os.environ.get("DISPLAY") and shutil.which("xprop") else None


def _x11() -> Foreground | None:
    root = xprop("-root", "_NET_ACTIVE_WINDOW")
    if root is None:
        return None
    window = re.search(r"window id # (0x[0-9a-f]+)", root)
    if window is None or int(window[1], 16) == 0:
        # No match: no window manager names a window. Id 0: no window is in front.
        return Foreground() if window else None
    output = xprop("-id", window[1], "-notype", "WM_CLASS", "_NET_WM_NAME", "WM_NAME")
    return of_xprop(output) if output is not None else None


def of_xprop(output: str) -> Foreground:
    """Parse xprop's output for a window: the last word of its class, and its UTF-8 name or else its old name."""
    values = values_of(output)
    classes = _strings(values.get("WM_CLASS", ""))
    names = _strings(values.get("_NET_WM_NAME", "")) or _strings(values.get("WM_NAME", ""))
    return Foreground(classes[-1] if classes else "", names[0] if names else "")


def values_of(output: str) -> dict[str, str]:
    """Return the values in xprop's output by their names, with or without types; leave out missing ones."""
    return dict(re.findall(r"^(\w+)(?:\(\w+\))? = (.*)$", output, re.MULTILINE))


def stacked() -> list[str] | None:
    """Return the numbers of the windows of X11, the front one first; None if no window manager lists them."""
    query = ("-root", "-notype", "32x", " $0+\\n", "_NET_CLIENT_LIST_STACKING")
    listed = xprop(*query) if sys.platform == "linux" else None
    # xprop lists the window in front last.
    return None if listed is None or "not found" in listed else re.findall(r"0x[0-9a-f]+", listed)[::-1]


def _strings(text: str) -> list[str]:
    return [_unescaped(string) for string in re.findall(r'"((?:[^"\\]|\\.)*)"', text)]


def _unescaped(text: str) -> str:
    """Decode bytes beyond ASCII, which xprop writes as octal digits in the C locale: UTF-8, or Latin-1 in old names."""
    plain = re.sub(
        rb"\\([0-7]{3}|.)",
        lambda match: bytes([int(match[1], 8) & 0xFF]) if len(match[1]) == 3 else match[1],
        text.encode(),
    )
    try:
        return plain.decode()
    except UnicodeDecodeError:
        return plain.decode("latin-1")


def xprop(*arguments: str) -> str | None:
    """Return the output of `xprop`; None if it is not installed, cannot reach the display, or finds no such window."""
    # In other locales xprop writes question marks for characters that it cannot show.
    return output_of("xprop", *arguments, env={"LC_ALL": "C"})


def output_of(*command: str, env: dict[str, str] | None = None) -> str | None:
    """Return a command's output; None if it is not installed, fails, or takes longer than `LIMIT_S`."""
    try:
        done = subprocess.run(  # noqa: S603  # our own arguments
            command, capture_output=True, timeout=LIMIT_S, check=True, env={**os.environ, **(env or {})}
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").rstrip("\n")


def _windows() -> Foreground | None:
    if sys.platform != "win32":
        return None
    import ctypes  # noqa: PLC0415  # its Windows part exists on Windows only

    window = ctypes.windll.user32.GetForegroundWindow()
    return windows_name(window) if window else Foreground()


def windows_name(window: int) -> Foreground:
    """Return the program and title of a window of Microsoft Windows."""
    if sys.platform != "win32":
        return Foreground()
    import ctypes  # noqa: PLC0415  # its Windows part exists on Windows only
    from ctypes import wintypes  # noqa: PLC0415

    user, kernel = ctypes.windll.user32, ctypes.windll.kernel32
    title = ctypes.create_unicode_buffer(512)
    user.GetWindowTextW(window, title, len(title))
    process = wintypes.DWORD()
    user.GetWindowThreadProcessId(window, ctypes.byref(process))
    limited = 0x1000
    handle = kernel.OpenProcess(limited, False, process)
    path, size = ctypes.create_unicode_buffer(1024), wintypes.DWORD(1024)
    if handle:
        kernel.QueryFullProcessImageNameW(handle, 0, path, ctypes.byref(size))
        kernel.CloseHandle(handle)
    return Foreground(path.value.rsplit("\\", 1)[-1], title.value)
