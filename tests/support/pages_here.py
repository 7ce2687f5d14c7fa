"""The work of page processes, done in this process, where tests can replace text recognition."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pipeline.reading.pdf import conversion
from pipeline.reading.pdf.conversion import PageSource
from pipeline.reading.pdf.pages import ConvertedPage, Options
from pipeline.reading.sandbox.limits import Limits


class PagesHere:
    """For `monkeypatch.setattr(local, "Pages", PagesHere)`: a `Pages` without a child."""

    def __init__(
        self,
        source: Path,
        limits: Limits,
        options: Options | None = None,
        survey: str = "",
        scratch: Path | None = None,
    ) -> None:
        self._path = source
        self._options = options or Options()
        self._survey = survey
        self._stack = ExitStack()
        self._source: PageSource | None = None

    def __enter__(self) -> "PagesHere":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def survey(self, numbers: Sequence[int], tick: Callable[[], object]) -> str:
        return conversion.survey(self._path, numbers, self._options, tick)

    def convert(self, number: int, image: Path | None = None, picture_folder: Path | None = None) -> ConvertedPage:
        if self._source is None:
            self._source = self._stack.enter_context(conversion.open_source(self._path, self._options, self._survey))
        return self._source.convert(number, image, picture_folder)
