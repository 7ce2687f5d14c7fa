"""Survey, convert and render the pages of one document, which a child process keeps open."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple, Self
from uuid import uuid4

from pipeline.engine.errors import UnitError
from pipeline.reading.ocr import second_opinion
from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.ocr.second_opinion import DOUBTFUL_LINES
from pipeline.reading.sandbox.child import Session
from pipeline.reading.sandbox.limits import MAX_PIXELS, LayoutChoice, Limits

NOT_OPEN = "not_open"
"""The error code of a child that has not opened this document, or has opened another since."""
_CHILDREN = 3
"""How many children may be asked for a page; the first may not have opened the document."""


class Options(NamedTuple):
    """How to read pages. `pictures`: recognise text in pictures even on pages with a text layer.

    `layout`: the pages that the layout model analyses: all (`model`), none (`geometry`), or recognised pages and pages
    whose geometry is unsure (`auto`, which works without the model if it does not load).

    `second_opinion`: let Tesseract read pages of which recognition is unsure.

    A page may take `page_s` seconds, and its text layer a third of that. A page whose text layer takes longer is
    recognised instead: a text layer of a hundred thousand single letters takes 5 s, in whole lines 0.3 s, and the
    layout takes about as long again.
    """

    dpi: int = 200
    pictures: bool = False
    max_pixels: int = MAX_PIXELS
    threads: int = 1
    page_s: float = 60.0
    keep_headers: bool = False
    layout: LayoutChoice = "auto"
    second_opinion: bool = False


class ConvertedPage(NamedTuple):
    """A page's Markdown. `layout`: its `width`, `height`, their `unit` ("pt" or "px"), and its `blocks` as data.

    A page with recognised text also has `confidence`, 0 to 1, and `uncertain`, the share of its text that may be wrong.
    `garbled`: the first words that make no sense. `lines`: the recognised lines, each as text, the four sides of its
    box, angle and `places` as in `Line`, in reading order; missing if a text layer has all of the text. `lean`: the
    degrees by which the picture leans clockwise; the lines are placed as if it did not."""

    text: str
    layout: dict[str, Any]


class Pages:
    """The pages of a PDF or a picture file, detected by content, for one thread. Close it at the end.

    If a page is too much for the child, only that page fails: another child reads the next page.
    """

    def __init__(
        self,
        source: Path,
        limits: Limits,
        options: Options | None = None,
        survey: str = "",
        scratch: Path | None = None,
    ) -> None:
        """`limits` apply to each page; `survey`: the JSON text that `survey` returned, empty: each page makes a profile
        of its own. Opens nothing yet.

        `scratch`: the folder for pictures for a second opinion, by default or if missing the system's temporary folder.
        If this process is killed, a picture may stay there.
        """
        self._limits = limits
        self._key = uuid4().hex
        self._file = {"path": str(source.absolute()), "options": (options or Options())._asdict()}
        self._opening = {"task": "open", "key": self._key, "survey": survey, **self._file}
        self._second_opinion = options is not None and options.second_opinion
        place = (scratch if scratch and scratch.is_dir() else Path(gettempdir())) if self._second_opinion else None
        self._session = Session(advice="", scratch=place and place.absolute())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the child process, which other files may use or which ends; harmless if none was started."""
        self._session.close()

    def survey(self, numbers: Sequence[int], tick: Callable[[], object]) -> str:
        """Read the pages with these numbers in a child, and return the document's profile as JSON text, for `__init__`;
        empty for a picture file.

        It holds the style of the text, the levels of the headings and the repeated lines. Calls `tick` twice a second.
        Raises `UnitError` if the file cannot be opened or takes too long or no child can read it, and whatever `tick`
        raises.
        """
        limits = replace(self._limits, total_s=2 * self._limits.timeout_s)
        task = {"task": "survey", "pages": _runs(numbers), **self._file}

        def wanted() -> bool:
            tick()
            return True

        return str(self._session.ask(task, "the document", limits, wanted)["survey"])

    def convert(self, number: int, image: Path | None = None, picture_folder: Path | None = None) -> ConvertedPage:
        """Convert page `number` (from 1) in a child to Markdown and layout.

        `image`: a file with a picture of the page, read if its text layer is unusable; `picture_folder`: where to save
        the page's own pictures, None: nowhere. A doubtful page is read again with Tesseract if the options ask for
        that. Raises `UnitError`: permanent if the file or page is missing, damaged or too much for the child; transient
        if no child starts or recognition fails.
        """
        if picture_folder:
            picture_folder.mkdir(parents=True, exist_ok=True)
        reads, writes = ([str(path.absolute())] if path else [] for path in (image, picture_folder))
        task = {
            "task": "convert",
            "page": number,
            "image": image and str(image.absolute()),
            "pictures": picture_folder and str(picture_folder.absolute()),
            "second": uuid4().hex if self._second_opinion else None,
            "reads": reads,
            "writes": writes,
        }
        folder: Path | None = None
        try:
            answer = self._ask(task)
            # The child makes the folder, for a doubtful page: making one can take as long as reading a page.
            folder = self._session.scratch and self._session.scratch / str(task["second"])
            asked = folder is not None and (folder / DOUBTFUL_LINES).exists()
            if folder and asked and second_opinion.read(folder, self._limits, lambda: True):
                answer = self._ask(task)
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
        return ConvertedPage(str(answer["text"]), dict(answer["layout"]))

    def render(
        self,
        number: int,
        folder: Path,
        rendition: Rendition,
        max_pixels: int,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Path:
        """Draw page `number` (from 1) to `page-0001.jpg` or `.png` in `folder`, whole or not at all, with its
        `PictureFacts` beside it; return its path.

        It has at most `max_pixels` pixels. Calls `wanted` twice a second. Raises `UnitError`, `Unwanted` if `wanted`
        returns False, and whatever `wanted` raises.
        """
        folder.mkdir(parents=True, exist_ok=True)
        target = str(folder.absolute())
        task = {"task": "picture", "page": number, "folder": target, "writes": [target]}
        return Path(self._ask({**task, "rendition": asdict(rendition), "max_pixels": max_pixels}, wanted)["path"])

    def _ask(self, task: Mapping[str, Any], wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
        """Return the child's answer to a task on one page; open the document in the child first if necessary.

        Calls `wanted` twice a second. Raises `UnitError`, `Unwanted` if `wanted` returns False, and whatever `wanted`
        raises.
        """
        request, name = {**task, "key": self._key, "path": self._file["path"]}, f"page {task['page']}"
        for _ in range(_CHILDREN):
            try:
                return self._session.ask(request, name, self._limits, wanted)
            except UnitError as error:
                if error.code != NOT_OPEN:
                    raise
            # First page, or a new child: the previous one was too large or was killed.
            self._session.ask(self._opening, "the document", self._limits, wanted)
        message = f"The processes that read {name} were killed; look at this machine's memory."
        raise UnitError(message, code="reader_killed")


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return ascending page numbers as [first, last] of each run."""
    breaks = [place for place, (number, following) in enumerate(pairwise(numbers), 1) if following != number + 1]
    edges = [0, *breaks, len(numbers)]
    return [[numbers[a], numbers[b - 1]] for a, b in pairwise(edges)] if numbers else []
