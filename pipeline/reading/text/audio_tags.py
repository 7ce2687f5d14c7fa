"""Read the tags of audio files in a child process: 200 KB of packed tags may unpack to any amount of memory."""

import errno
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.reading.files.user_file import open_file
from pipeline.reading.sandbox.child import Session
from pipeline.reading.sandbox.limits import Limits

MAX_CHARS = 1000
"""The longest tag; the rest is cut off."""

_LIMITS = Limits(timeout_s=10, memory_mb=500, max_chars=100_000)
"""Album covers, some megabytes, are read along with the tags."""
_NAMES = {
    "title": ("title", "TIT2", "\xa9nam", "Title"),
    "artist": ("artist", "TPE1", "\xa9ART", "Author", "Artist"),
    "album": ("album", "TALB", "\xa9alb", "WM/AlbumTitle", "Album"),
    "genre": ("genre", "TCON", "\xa9gen", "WM/Genre", "Genre"),
    "date": ("date", "TDRC", "\xa9day", "WM/Year", "Year"),
    "musicbrainz_id": (
        "musicbrainz_trackid",
        "UFID:http://musicbrainz.org",
        "----:com.apple.iTunes:MusicBrainz Track Id",
        "MusicBrainz/Track Id",
        "MUSICBRAINZ_TRACKID",
    ),
}


def can_read() -> bool:
    """Whether the package that reads tags, an extra, is installed."""
    return find_spec("mutagen") is not None


def read(path: Path, session: Session) -> dict[str, Any]:
    """Return a file's `title`, `artist`, `album`, `genre`, `musicbrainz_id` (texts), `year` and `duration_s` (numbers
    or None); empty for a file without audio.

    Raises `OSError` if the system cannot read it; `UnitError` if mutagen cannot parse it (permanent), or if no child
    starts (transient).
    """
    open_file(path).close()
    answer = session.ask({"task": "tags", "path": str(path.absolute())}, path.name, _LIMITS)
    if "system" in answer:
        raise OSError(answer["system"])
    tags: dict[str, Any] = answer["tags"]
    return tags


def tags_of(path: Path) -> dict[str, Any]:
    """Read tags in this process: return a dict with `tags`, or with `system`, the text of the system's error. Raises
    whatever mutagen raises."""
    import mutagen  # noqa: PLC0415  # an extra

    try:
        with open_file(path) as opened:
            file = mutagen.File(opened)
    except (OSError, mutagen.MutagenError) as error:
        cause = error.args[0] if isinstance(error, mutagen.MutagenError) and error.args else error
        # False sizes also end in `OSError`: without a number, or for an invalid seek.
        if isinstance(cause, OSError) and cause.errno not in {None, errno.EINVAL}:
            return {"system": str(cause)}
        raise
    return {"tags": _tags(file) if file is not None else {}}


def _tags(file: Any) -> dict[str, Any]:
    tags = file.tags or {}
    facts: dict[str, Any] = {name: _first(tags, keys, all_of_it=name == "genre") for name, keys in _NAMES.items()}
    date = facts.pop("date")[:4]
    facts["year"] = int(date) if date.isascii() and date.isdigit() else None
    facts["duration_s"] = getattr(file.info, "length", None)
    return facts


def _first(tags: Any, keys: tuple[str, ...], *, all_of_it: bool = False) -> str:
    """Return the first value under any of these keys as text; with `all_of_it`, all values under the first such key."""
    for key in keys:
        try:
            value = tags[key]
        except (KeyError, ValueError):
            continue
        value = getattr(value, "data", None) or getattr(value, "text", value)
        if all_of_it and isinstance(value, list):
            value = ", ".join(str(getattr(item, "value", item)) for item in value)
        value = value[0] if isinstance(value, list) and value else value
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(getattr(value, "value", value))
        if text and text != "[]":
            return text[:MAX_CHARS]
    return ""
