"""JSON that a stranger wrote: its size on the wire says little about what it takes to hold it.

Two bytes may become an object of seventy, so 32 MB of `{},{},…` took 800 MB and seconds in which nothing else ran.
Counting the marks that begin a part costs milliseconds, and is done before anything is built.
"""

import json

MAX_CONTAINERS = 500_000
"""Objects and lists in one text. Marks inside of strings count, too: an answer of a model may be JSON itself."""
MAX_NAMES = 500_000
"""Names of members: three million different ones take five seconds and half a gigabyte."""
MAX_PARTS = 4_000_000
"""Items of objects and lists: vectors have most."""
_MAX_DIGITS = 400


class TooManyParts(ValueError):
    """The text has more objects or items than anybody would send in good faith."""


def loads(text: str | bytes) -> object:
    """What `text` holds. A whole number of many hundred digits becomes infinite rather than end the reading.

    Raises `TooManyParts` and, as `json.loads` does, `ValueError` and `RecursionError`."""
    check(text)
    return json.loads(text, parse_int=whole_number)


def check(text: str | bytes) -> None:
    """Raises `TooManyParts`."""
    if isinstance(text, str):
        containers, names, items = text.count("{") + text.count("["), text.count(":"), text.count(",")
    else:
        containers, names, items = text.count(b"{") + text.count(b"["), text.count(b":"), text.count(b",")
    if containers > MAX_CONTAINERS or names > MAX_NAMES or items > MAX_PARTS:
        raise TooManyParts("there are too many objects, lists or items in it")


def whole_number(digits: str) -> int | float:
    """The number; beyond what Python converts it is infinite."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
