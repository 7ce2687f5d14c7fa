"""A folder of audio files as a library, read from the files' tags, for users without a music server."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.music.library.songs import FOLDER, LibraryError, Listing, SongTags
from pipeline.reading.files.user_file import is_file_below, walk
from pipeline.reading.sandbox.child import Session
from pipeline.reading.text import audio_tags

log = structlog.get_logger(__name__)
SUFFIXES = frozenset(
    {
        ".aac",
        ".aif",
        ".aiff",
        ".ape",
        ".flac",
        ".m4a",
        ".mp3",
        ".mpc",
        ".oga",
        ".ogg",
        ".opus",
        ".wav",
        ".wma",
        ".wv",
    }
)
PAGE = 200


class MusicFolder:
    """All audio files under a folder. `unreadable`: the number of unreadable files and folders so far."""

    name = FOLDER

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise LibraryError(f"there is no folder {folder}: check PENSTOCK_MUSIC__FOLDER", code="no_folder")
        self._folder = folder
        self._root = folder.resolve()
        if not audio_tags.can_read():
            raise LibraryError(
                "reading audio files needs one more package: pip install '.[folder]' in Penstock's folder",
                code="no_mutagen",
            )
        self.unreadable = 0

    def count(self) -> Listing:
        """Return a listing with the count 0, by which no walk is incomplete: a walk sees all songs, and `unreadable`
        counts the exceptions."""
        return Listing(0, scanning=False, scanned_at="")

    def songs(self) -> Iterator[list[SongTags]]:
        """Yield all songs, in pages of up to `PAGE`; leave out unreadable files and folders, and count them in
        `unreadable`. Leaves out links out of the folder, too, uncounted. A file with broken tags is a song, named after
        its file.

        Raises `LibraryError` (transient) if a child process fails in a way that may pass.
        """
        page: list[SongTags] = []
        with Session(advice="") as session:
            for path in self._files():
                song = self._song(path, session)
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

        for folder, folders, names in walk(self._folder, failed):
            folders.sort()
            for name in sorted(names):
                if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                    yield Path(folder, name)

    def _song(self, path: Path, session: Session) -> SongTags | None:
        relative = os.fsencode(path.relative_to(self._folder))
        shown = relative.decode("utf-8", "replace")
        tags: dict[str, Any] = {}
        try:
            path.stat()
        except OSError as error:
            self._unreadable(shown, error)
            return None
        if not is_file_below(path, self._root):
            log.warning("music.not_a_song", file=shown, reason="no ordinary file, or a link out of the folder")
            return None
        try:
            tags = audio_tags.read(path, session)
        except OSError as error:
            self._unreadable(shown, error)
            return None
        except UnitError as error:  # a broken file made the parser fail
            if error.kind is not ErrorKind.PERMANENT:
                raise LibraryError(str(error), code=error.code, transient=True) from error
            log.warning("music.tags_unreadable", file=shown, error=str(error))
        tags.setdefault("title", "")
        tags["title"] = tags["title"] or path.stem
        return SongTags.of(hashlib.sha256(relative).hexdigest()[:32], path=shown, **tags)

    def _unreadable(self, shown: str, error: OSError) -> None:
        """Count a file that may become readable later, so that the listing is incomplete."""
        self.unreadable += 1
        log.warning("music.file_unreadable", file=shown, error=type(error).__name__)
