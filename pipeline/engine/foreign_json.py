"""Read JSON from foreign senders, whose size in memory may far exceed its size on the wire.

Two bytes may become an object of seventy: 32 MB of `{},{},…` took 800 MB, and seconds in which nothing else ran.
So this counts the marks that begin a part, in milliseconds, before it builds any object.
"""

import json

MAX_CONTAINERS = 500_000
"""The most objects and lists in one text. Marks inside strings count too: a model's answer may be JSON itself."""
MAX_NAMES = 500_000
"""The most names of members: three million different names take five seconds and half a gigabyte."""
MAX_PARTS = 4_000_000
"""The most items of objects and lists; vectors have many."""
_MAX_DIGITS = 400


class TooManyParts(ValueError):
    """The text has more objects or items than any well-meant message needs."""


def loads(text: str | bytes) -> object:
    """Parse JSON. A whole number of more than 400 digits becomes infinite instead of an error.

    Raises `TooManyParts`, another `ValueError` for invalid JSON, or `RecursionError` for deep nesting.
    """
    check(text)
    return json.loads(text, parse_int=whole_number)


def check(text: str | bytes) -> None:
    """Raise `TooManyParts` if the JSON has too many objects, lists, names or items, judged by its brackets, colons and
    commas."""
    if isinstance(text, str):
        containers, names, items = text.count("{") + text.count("["), text.count(":"), text.count(",")
    else:
        containers, names, items = text.count(b"{") + text.count(b"["), text.count(b":"), text.count(b",")
    if containers > MAX_CONTAINERS or names > MAX_NAMES or items > MAX_PARTS:
        raise TooManyParts("it has too many objects, lists or items")


def whole_number(digits: str) -> int | float:
    """Return the number; the float infinity if it has more than 400 digits, too many for Python to convert."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
