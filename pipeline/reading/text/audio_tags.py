"""The tags of audio files, read in a child process: 200 KB of packed tags unpack to as much memory as they like."""

import errno
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.reading.files.user_file import open_file
from pipeline.reading.sandbox.child import Session
from pipeline.reading.sandbox.limits import Limits

MAX_CHARS = 1000
"""Of each tag; the rest is cut off."""

_LIMITS = Limits(timeout_s=10, memory_mb=500, max_chars=100_000)
"""Pictures of albums are read along with the tags: some megabytes."""
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
    """A file's `title`, `artist`, `album`, `genre`, `musicbrainz_id` (texts), `year` and `duration_s` (numbers or
    None), as far as it has any; nothing for what is no audio file.

    Raises `OSError` if the system cannot read it; `UnitError` if nobody can make sense of it (permanent), or if there
    is no child to do so (transient).
    """
    open_file(path).close()
    answer = session.ask({"task": "tags", "path": str(path.absolute())}, path.name, _LIMITS)
    if "system" in answer:
        raise OSError(answer["system"])
    tags: dict[str, Any] = answer["tags"]
    return tags


def tags_of(path: Path) -> dict[str, Any]:
    """The same, in this process: `tags`, or `system`, what the system said. Raises whatever mutagen does."""
    import mutagen  # noqa: PLC0415  # an extra

    try:
        with open_file(path) as opened:
            file = mutagen.File(opened)
    except (OSError, mutagen.MutagenError) as error:
        cause = error.args[0] if isinstance(error, mutagen.MutagenError) and error.args else error
        # Sizes that lie, too, end in errors of the system's kind: without a number, or as seeking to nowhere.
        if isinstance(cause, OSError) and cause.errno not in {None, errno.EINVAL}:
            return {"system": str(cause)}
        raise
    return {"tags": _tags(file) if file is not None else {}}


def _tags(file: Any) -> dict[str, Any]:
    tags = file.tags or {}
    found: dict[str, Any] = {name: _first(tags, keys, all_of_it=name == "genre") for name, keys in _NAMES.items()}
    date = found.pop("date")[:4]
    found["year"] = int(date) if date.isascii() and date.isdigit() else None
    found["duration_s"] = getattr(file.info, "length", None)
    return found


def _first(tags: Any, keys: tuple[str, ...], *, all_of_it: bool = False) -> str:
    """The first value under any of these keys, as text; or all the values under the first key that has any."""
    for key in keys:
        try:
            value = tags[key]
        except (KeyError, ValueError):
            continue
        value = getattr(value, "data", None) or getattr(value, "text", value)
        if all_of_it and isinstance(value, list):
            value = ", ".join(str(getattr(one, "value", one)) for one in value)
        value = value[0] if isinstance(value, list) and value else value
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(getattr(value, "value", value))
        if text and text != "[]":
            return text[:MAX_CHARS]
    return ""
