"""Strip accents from letters for searches: people type "bjork" and mean Björk."""

import unicodedata

_OTHERS = {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe"}
_KANA_MARKS = ("\u3099", "\u309a")
"""These marks change the sound; they are not accents."""


class _Plain(dict[int, str]):
    """A table for `str.translate` that computes each character once."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        apart = unicodedata.normalize("NFD", letter)
        marks = apart[1:]
        is_accented = marks and all(unicodedata.category(mark) == "Mn" and mark not in _KANA_MARKS for mark in marks)
        self[code] = result = apart[0] if is_accented else _OTHERS.get(letter, letter)
        return result


_PLAIN = _Plain()


def plain(text: str) -> str:
    """Return a case-folded text without accents; `æ` becomes two letters."""
    return text if text.isascii() else text.translate(_PLAIN)
