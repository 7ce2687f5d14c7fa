"""Letters without their accents, for looking up: people type "bjork" and mean Björk."""

import unicodedata

_OTHERS = {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe"}
_KANA_MARKS = ("\u3099", "\u309a")
"""They make other sounds, and no accents."""


class _Plain(dict[int, str]):
    """For `str.translate`: works each character out once."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        apart = unicodedata.normalize("NFD", letter)
        marks = apart[1:]
        is_accented = marks and all(unicodedata.category(mark) == "Mn" and mark not in _KANA_MARKS for mark in marks)
        self[code] = found = apart[0] if is_accented else _OTHERS.get(letter, letter)
        return found


_PLAIN = _Plain()


def plain(text: str) -> str:
    """A text in small letters, without accents."""
    return text if text.isascii() else text.translate(_PLAIN)
