"""Show characters that a terminal, an editor or a log takes as commands as readable escapes.

All foreign text (names, titles, pages, errors, replies) passes here on its way to a terminal or a log.
"""

import json
import re
import unicodedata
from collections.abc import Callable

_CONTROL = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0, DEL and C1, but for the tab and the line feed
    "\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # bidi, joiners, invisible formats
    "\u2028\u2029"  # what some programs take as the end of a line
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
    "\ud800-\udfff"  # bytes of a name that is not UTF-8, and halves of characters
    "]"
)
_JOINERS = frozenset("\u200c\u200d")
_JOINED = frozenset({"Lo", "Mn", "Mc", "So", "Sk"})
"""Characters that a joiner may follow: letters and signs of scripts without capitals (Persian, Hindi …), and emoji."""
_BYTES = range(0xDC80, 0xDD00)
"""Python's stand-ins for bytes of arguments and file names that are not UTF-8."""


def printable(text: str) -> str:
    r"""Replace control characters by escapes such as `\x1b` and `\u202e`; line feeds and tabs stay."""
    return _replaced(text.replace("\r\n", "\n"), _escape)


def printable_line(text: str) -> str:
    """Like `printable`, but on one line: each run of white space, line feeds too, becomes one space."""
    return printable(" ".join(text.split()))


def json_escaped(text: str) -> str:
    """Replace control characters in JSON by JSON escapes: the result means the same, is UTF-8, and is safe to print."""
    return _replaced(text, lambda char: json.dumps(char)[1:-1])


def _replaced(text: str, escape: Callable[[str], str]) -> str:
    def shown(match: re.Match[str]) -> str:
        char, at = match[0], match.start()
        if char in _JOINERS and at and unicodedata.category(text[at - 1]) in _JOINED:
            return char
        return escape(char)

    return _CONTROL.sub(shown, text)


def _escape(char: str) -> str:
    code = ord(char)
    if code in _BYTES:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
