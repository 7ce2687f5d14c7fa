"""The pages of one document, read by a child process that has it open: surveyed, converted and rendered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self
from uuid import uuid4

from pipeline.engine.errors import UnitError
from pipeline.reading.ocr import second_opinion
from pipeline.reading.ocr.second_opinion import PICTURE
from pipeline.reading.sandbox.child import Session
from pipeline.reading.sandbox.limits import MAX_PIXELS, LayoutChoice, Limits

NOT_OPEN = "not_open"
"""The code of a child's error that has not opened the document, or another one since."""
_CHILDREN = 3
"""How many children may be asked for a page, the first of which has not opened the document."""


class Options(NamedTuple):
    """How to read pages. `pictures`: recognise text in pictures on pages that have a text layer, too.

    `layout`: the pages that the layout model sees: each (`model`), none (`geometry`), or recognised pages and pages
    whose geometry is unsure (`auto`, which goes on without the model where it does not load).

    `second_opinion`: whether Tesseract reads pages of which recognition is unsure.

    A page may take `page_s` seconds; a third of that is for its text layer. A text layer that takes longer is
    recognised instead: a page of a hundred thousand single letters takes 5 s, one of as many in lines 0.3 s, and laying
    them out takes about as long again.
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

    Where the text was recognised, `confidence` as well: how sure the recognition is of it, 0 to 1, and `uncertain`:
    which share of the text it is so unsure of that it may be wrong. `garbled`: the first words that make no sense."""

    text: str
    layout: dict[str, Any]


class Pages:
    """A PDF, PNG, JPEG, WebP or TIFF file, told apart by content, for one thread.

    A page that is too much for the child fails alone: the next one is read by another child. Close it at the end.
    """

    def __init__(
        self,
        source: Path,
        limits: Limits,
        options: Options | None = None,
        survey: str = "",
        scratch: Path | None = None,
    ) -> None:
        """`limits` hold for each page; `survey`: what `survey` returned. Opens nothing yet.

        `scratch`: where pictures of pages are for a second opinion. If this process is killed, one may stay there. By
        default, and if there is no such folder, they are in the system's temporary folder.
        """
        self._limits = limits
        self._key = uuid4().hex
        self._file = {"path": str(source.absolute()), "options": (options or Options())._asdict()}
        self._opening = {"task": "open", "key": self._key, "survey": survey, **self._file}
        self._scratch = scratch
        self._second_opinion = options is not None and options.second_opinion
        self._session = Session(advice="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the child; harmless if there is none."""
        self._session.close()

    def survey(self, numbers: Sequence[int], tick: Callable[[], object]) -> str:
        """What `conversion.survey` finds. Calls `tick` twice a second. Raises `UnitError` as `convert` does."""
        limits = replace(self._limits, total_s=2 * self._limits.timeout_s)
        task = {"task": "survey", "pages": _runs(numbers), **self._file}

        def wanted() -> bool:
            tick()
            return True

        return str(self._session.ask(task, "the document", limits, wanted)["survey"])

    def convert(self, number: int, image: Path | None = None, picture_folder: Path | None = None) -> ConvertedPage:
        """What `PageSource.convert` finds on a page.

        Raises `UnitError` as `conversion.open_source` and that do, and as `child.Session.ask` does for a page that is
        too much for the child.
        """
        task = {
            "task": "convert",
            "page": number,
            "image": image and str(image.absolute()),
            "pictures": picture_folder and str(picture_folder.absolute()),
            "second": None,
        }
        if not self._second_opinion:
            return _page(self._ask(task))
        scratch = self._scratch if self._scratch and self._scratch.is_dir() else None
        with TemporaryDirectory(prefix="penstock-page-", dir=scratch) as folder:
            task["second"] = folder
            found = self._ask(task)
            if (Path(folder) / PICTURE).exists() and second_opinion.read(Path(folder), self._limits, lambda: True):
                found = self._ask(task)
            return _page(found)

    def render(
        self, number: int, folder: Path, dpi: float, max_pixels: int, wanted: Callable[[], bool] = lambda: True
    ) -> Path:
        """The file that `PageSource.render` makes of a page. Raises as `convert` does, and whatever `wanted` raises."""
        asked = {"task": "picture", "page": number, "folder": str(folder.absolute()), "dpi": dpi}
        return Path(self._ask({**asked, "max_pixels": max_pixels}, wanted)["path"])

    def _ask(self, task: Mapping[str, Any], wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
        """The answer about a page, by a child that has the document open."""
        asked, name = {**task, "key": self._key}, f"page {task['page']}"
        for _ in range(_CHILDREN):
            try:
                return self._session.ask(asked, name, self._limits, wanted)
            except UnitError as error:
                if error.code != NOT_OPEN:
                    raise
            # The first page, or another child: the one before was too large or was killed.
            self._session.ask(self._opening, "the document", self._limits, wanted)
        message = f"The processes that read {name} were killed; look at this machine's memory."
        raise UnitError(message, code="reader_killed")


def _page(found: Mapping[str, Any]) -> ConvertedPage:
    return ConvertedPage(str(found["text"]), dict(found["layout"]))


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending page numbers as (first, last) of each run."""
    breaks = [place for place, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1]
    edges = [0, *breaks, len(numbers)]
    return [[numbers[a], numbers[b - 1]] for a, b in pairwise(edges)] if numbers else []
