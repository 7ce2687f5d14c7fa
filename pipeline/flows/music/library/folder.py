"""A folder of audio files as a library, read from their tags: for people without a music server."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from pipeline.flows.music.library.songs import FOLDER, LibraryError, Listing, SongTags
from pipeline.reading.user_file import is_file_below, open_file

log = structlog.get_logger(__name__)
SUFFIXES = frozenset({
    ".aac", ".aif", ".aiff", ".ape", ".flac", ".m4a", ".mp3", ".mpc", ".oga", ".ogg", ".opus", ".wav", ".wma", ".wv",
})  # fmt: skip
PAGE = 200
_NAMES = {
    "title": ("title", "TIT2", "\xa9nam", "Title"),
    "artist": ("artist", "TPE1", "\xa9ART", "Author", "Artist"),
    "album": ("album", "TALB", "\xa9alb", "WM/AlbumTitle", "Album"),
    "genre": ("genre", "TCON", "\xa9gen", "WM/Genre", "Genre"),
    "date": ("date", "TDRC", "\xa9day", "WM/Year", "Year"),
    "musicbrainz_id": (
        "musicbrainz_trackid", "UFID:http://musicbrainz.org", "----:com.apple.iTunes:MusicBrainz Track Id",
        "MusicBrainz/Track Id", "MUSICBRAINZ_TRACKID",
    ),
}  # fmt: skip


class MusicFolder:
    """All audio files under a folder. `unreadable`: files and folders that could not be read so far."""

    name = FOLDER

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise LibraryError(f"there is no folder {folder}: check PENSTOCK_MUSIC__FOLDER", code="no_folder")
        self._folder = folder
        self._root = folder.resolve()
        self._read = _reader()
        self.unreadable = 0

    def count(self) -> Listing:
        """What the walk saw is all there is, unless something could not be read."""
        return Listing(0, scanning=False, scanned_at="")

    def songs(self) -> Iterator[list[SongTags]]:
        """All songs, a page at a time."""
        page: list[SongTags] = []
        for path in self._files():
            song = self._song(path)
            if song is not None:
                page.append(song)
            if len(page) >= PAGE:
                yield page
                page = []
        if page:
            yield page

    def _files(self) -> Iterator[Path]:
        def failed(error: OSError) -> None:
            self.unreadable += 1
            log.warning("music.folder_unreadable", folder=error.filename, error=type(error).__name__)

        for folder, folders, names in os.walk(self._folder, onerror=failed):
            folders.sort()
            for name in sorted(names):
                if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                    yield Path(folder, name)

    def _song(self, path: Path) -> SongTags | None:
        relative = os.fsencode(path.relative_to(self._folder))
        shown = relative.decode("utf-8", "replace")
        tags: dict[str, Any] = {}
        if not is_file_below(path, self._root):
            log.warning("music.not_a_song", file=shown, reason="no ordinary file, or a link out of the folder")
            return None
        try:
            tags = self._read(path)
        except OSError as error:
            # It may come back: without it the listing is not complete.
            self.unreadable += 1
            log.warning("music.file_unreadable", file=shown, error=type(error).__name__)
            return None
        except Exception as error:  # noqa: BLE001  # whatever a broken file does to the parser
            log.warning("music.tags_unreadable", file=shown, error=type(error).__name__)
        tags.setdefault("title", "")
        tags["title"] = tags["title"] or path.stem
        return SongTags.of(hashlib.sha256(relative).hexdigest()[:32], path=shown, **tags)


def _reader() -> Any:
    """A function that reads a file's tags. Raises `LibraryError` if its package is not installed."""
    try:
        # Imported late: an extra, for people without a server.
        import mutagen  # noqa: PLC0415
    except ImportError:
        raise LibraryError(
            "reading audio files needs one more package: pip install '.[folder]' in Penstock's folder",
            code="no_mutagen",
        ) from None

    def read(path: Path) -> dict[str, Any]:
        try:
            with open_file(path) as opened:
                file = mutagen.File(opened)
        except mutagen.MutagenError as error:
            # An error of the system, wrapped: not the file's fault.
            if error.args and isinstance(error.args[0], OSError):
                raise error.args[0] from error
            raise
        return _tags_of(file) if file is not None else {}

    return read


def _tags_of(file: Any) -> dict[str, Any]:
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
            return text
    return ""
