"""Renditions of frames for people: smaller pictures, and the lines of text with their places.

A child process makes a rendition at the first request. It is stored beside the frame, and deleted with it. Analysis on
this machine also stores the text that it recognises, so that no request recognises it twice.
"""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.models import SHOTS
from pipeline.flows.screenshots.rules.headings import Box, SeenLine
from pipeline.flows.screenshots.views import TextLine, WordPlace
from pipeline.providers.replies import clean
from pipeline.reading.ocr.screen_frames import jpeg_of, lines_of
from pipeline.reading.sandbox.limits import Limits, Wanted
from pipeline.settings import Settings
from pipeline.storage.context import Context
from pipeline.storage.fusion import spots

SIDE_PX = {Kind.SMALL: 480, Kind.LARGE: 1920}
"""Most pixels of the longer side."""
_NARROW, _WIDE = frozenset("fijlrtIJ1.,:;'|!()[]{}-/\\ `\"°·•"), frozenset("mwMWQOG@%&—…")
_UPRIGHT = 1.5
"""A line that is this many times as high as wide runs up or down; its words get no boxes of their own."""


@dataclass(frozen=True)
class Rendition:
    """A rendition of a frame. `name` is unique; `content`: None if it does not exist yet."""

    name: str
    content: bytes | None


def find(context: Context, shot_id: int, kind: Kind) -> Rendition:
    """Return a stored rendition; its content is None if it does not exist yet. Raises `UserError` for an unknown frame,
    or if its picture is deleted."""
    file = _file(context, shot_id)
    with suppress(OSError):
        return Rendition(f"{file}.{kind}", files.rendition_of(context.settings, file, kind).read_bytes())
    return Rendition(f"{file}.{kind}", None)


def make(context: Context, shot_id: int, kind: Kind, wanted: Wanted = lambda: True) -> bytes:
    """Return a rendition's content; make and store it first if it does not exist, which takes seconds for text.

    A child process of low priority makes it. Raises `UserError` for an unknown frame, if its picture is deleted, or if
    that fails; `Unwanted` if `wanted` returns False.
    """
    existing = find(context, shot_id, kind)
    if existing.content is not None:
        return existing.content
    file = _file(context, shot_id)
    path = files.path_of(context.settings, file)
    try:
        if kind is Kind.TEXT:
            content = _dumped(read(context.settings, path, wanted, gentle=True))
        else:
            content = jpeg_of(path, SIDE_PX[kind], wanted, gentle=True)
    except UnitError as error:
        if error.code == "missing":
            raise _not_kept(shot_id) from error
        code = "no_picture" if error.kind is ErrorKind.PERMANENT else "busy"
        raise UserError(f"cannot show screenshot {shot_id} now: {error}", code=code) from error
    with suppress(OSError):
        files.keep_rendition(context.settings, file, kind, content)
    return content


def lines_in(text: bytes, words: str = "") -> list[TextLine]:
    """Return the lines of a `Kind.TEXT` rendition, with the places of a query's words."""
    return [_shown(SeenLine(line, Box(*sides)), words) for line, sides in json.loads(text)]


def known_places(context: Context, shot_ids: Iterable[int], words: str) -> dict[int, list[WordPlace]]:
    """Return the places of a query's words by frame, from stored text renditions; an empty list for a frame without
    one.

    Leaves out unknown frames, and frames whose picture is deleted.
    """
    places: dict[int, list[WordPlace]] = {}
    for shot_id in shot_ids:
        with suppress(UserError):  # the picture is deleted
            text = find(context, shot_id, Kind.TEXT).content
            places[shot_id] = [place for line in lines_in(text or b"[]", words) for place in line.words]
    return places


def read(settings: Settings, path: Path, wanted: Wanted = lambda: True, *, gentle: bool = False) -> list[SeenLine]:
    """Recognise a frame's text on this machine, in a child process; stores none. `gentle`: a process of low priority.
    Raises `UnitError` if the picture or the process fails; `Unwanted` if `wanted` returns False."""
    from pipeline.reading.ocr import recognition  # noqa: PLC0415  # pictures alone do not need it

    documents = settings.documents
    limits = Limits(timeout_s=documents.page_timeout_s, ocr_threads=recognition.threads_for(documents.converter_count))
    return [SeenLine(clean(line.text), Box(*line[1:])) for line in lines_of(path, limits, wanted, gentle=gentle)]


def keep(settings: Settings, file: str, seen: Sequence[SeenLine]) -> None:
    """Store a frame's recognised lines, those with boxes, as its text rendition. Raises nothing if that fails: the next
    request recognises the text."""
    with suppress(OSError):
        files.keep_rendition(settings, file, Kind.TEXT, _dumped(seen))


def _file(context: Context, shot_id: int) -> str:
    with context.db.read() as session:
        row = session.execute(select(SHOTS.c.file, SHOTS.c.storage_state).where(SHOTS.c.id == shot_id)).one_or_none()
    if row is None:
        raise UserError(f"there is no screenshot {shot_id}", code="unknown_screenshot")
    if row.storage_state != "stored":
        raise _not_kept(shot_id)
    return str(row.file)


def _not_kept(shot_id: int) -> UserError:
    return UserError(f"the picture of screenshot {shot_id} is deleted", code="no_picture")


def _dumped(seen: Sequence[SeenLine]) -> bytes:
    placed = [[line.text, [round(side, 5) for side in line.box]] for line in seen if line.box is not None]
    return json.dumps(placed, ensure_ascii=False).encode()


def _shown(line: SeenLine, words: str) -> TextLine:
    assert line.box is not None
    words_found = [(line.text[begin:end], place_of(line, begin, end)) for begin, end in spots(line.text, words)]
    return TextLine(line.text, *line.box, [WordPlace(text, *box) for text, box in words_found])


def place_of(line: SeenLine, begin: int, end: int) -> Box:
    """Estimate the box of these characters of a line, by the usual widths of characters.

    For a line that runs up or down, returns the whole line's box.
    """
    box = line.box
    assert box is not None
    if len(line.text) > 1 and box.bottom - box.top > _UPRIGHT * (box.right - box.left):
        return box
    widths = [_width(character) for character in line.text]
    whole = sum(widths)
    if not whole:
        return box
    across = (box.right - box.left) / whole
    left = box.left + sum(widths[:begin]) * across
    return Box(left, box.top, left + sum(widths[begin:end]) * across, box.bottom)


def _width(character: str) -> float:
    """Return a character's width in a proportional screen font, in units of a small letter."""
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.9
    if character in _NARROW:
        return 0.55
    if character in _WIDE:
        return 1.5
    return 1.25 if character.isupper() else 1.0
