"""The ports between flows and providers. Vision models and local conversion both turn pages into Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.engine.errors import ErrorKind, UnitError

if TYPE_CHECKING:
    from pipeline.providers.drawing import Drawing
    from pipeline.reading.ocr.rendition import Rendition
    from pipeline.reading.replies.problems import Problem

MOST_PASSES = 3
"""How often a model reads a page at most, if its replies fail their checks: each pass costs."""
MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
"""The types of pictures that models accept."""


@dataclass(frozen=True)
class Usage:
    """The tokens that a call was charged for; 0 if the provider reports none.

    `note`: implausible figures that the provider reported, in words; see `token_claim`. `reasoning_tokens`: those of
    the output that the model spent on reasoning."""

    input_tokens: int = 0
    output_tokens: int = 0
    note: str = ""
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class Answer:
    """Text from a model. `truncated`: it stopped at its token limit, not at its natural end.

    `layout`: the layout of a page, if known: `width`, `height`, `unit`, and its `blocks` in reading order, each with
    `type`, `text` and `bbox` (left, top, right, bottom from the top left corner). Recognised pages also have
    `confidence`, 0 to 1, and `uncertain`, the share of the text that may be wrong. `garbled`: words that make no
    sense."""

    text: str
    model: str
    usage: Usage = field(default_factory=Usage)
    latency_ms: int = 0
    truncated: bool = False
    layout: dict[str, Any] | None = None
    cut: bool = False
    """We broke the answer off."""
    reply: dict[str, Any] | None = None
    """The raw reply of the page and the facts to parse it again (`vision_pages.answer_of`), ready for JSON."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the model reasoned until its limit, and wrote no answer or a short one."""
        return self.truncated and (not self.text.strip() or self.usage.reasoning_tokens * 2 > self.usage.output_tokens)


@dataclass(frozen=True)
class Vectors:
    """One float vector for each input, in the order of the inputs."""

    vectors: list[list[float]]
    model: str
    usage: Usage = field(default_factory=Usage)
    latency_ms: int = 0


def charged(result: Answer | Vectors) -> tuple[str, int, int]:
    """Return (model, input tokens, output tokens), which decide the cost of a call."""
    return result.model, result.usage.input_tokens, result.usage.output_tokens


@dataclass(frozen=True)
class PageRef:
    """One page to convert: page `number` (from 1) of `source`. `image`: its picture, if one was rendered.

    `pictures`: the folder in which to save the pictures on the page, if wanted. `drawing`: draws the page again, turned
    or in parts, if that is possible."""

    source: Path
    number: int
    image: Path | None = None
    pictures: Path | None = None
    drawing: "Drawing | None" = None


Call = Callable[[str, Callable[[], Answer]], Answer]
"""Makes the request of the second argument, and returns its answer. The first is a digest of the whole request: an
answer to it that was paid for, but not used yet, is returned instead. Raises `UnitError`."""


def directly(key: str, send: Callable[[], Answer]) -> Answer:  # noqa: ARG001
    """A `Call` that knows no earlier answers."""
    return send()


class RejectedAnswer(UnitError):
    """The answer fails its checks; `answer`: it, as far as it could be read. `code`: of the first problem, such as
    `truncated`."""

    kind = ErrorKind.PERMANENT

    def __init__(self, message: str, answer: Answer, code: str = "truncated") -> None:
        super().__init__(message, code=code)
        self.answer = answer

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.answer, self.code)


@dataclass(frozen=True)
class Pass:
    """One reading of a page by a model. `error`: why its answer is not used. `problems`: all that its checks found."""

    answer: Answer
    error: UnitError | None = None
    problems: "tuple[Problem, ...]" = ()


@dataclass(frozen=True)
class Question:
    """A request about a picture, exactly as a model wants it. Without a `prompt`, the picture is sent alone."""

    prompt: str
    system: str = ""
    picture_first: bool = True
    detail: str = ""
    """OpenAI's `image_url.detail`; empty: none is sent."""
    max_tokens: int = 8192
    fields: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the request, such as the temperature."""


class Vision(Protocol):
    """Answers prompts about pictures."""

    name: str
    model: str

    def describe(self, image: bytes, media_type: str, prompt: str) -> Answer:
        """Answer `prompt` about `image` (encoded PNG, JPEG or WebP). Raises `UnitError`."""

    def describe_all(
        self,
        images: Sequence[bytes],
        media_type: str,
        prompt: str,
        *,
        system: str = "",
        json_schema: dict[str, object] | None = None,
    ) -> Answer:
        """Answer `prompt` about several images, which follow it in order. Raises `UnitError`."""


class Text(Protocol):
    """Answers a text prompt."""

    name: str
    model: str

    def complete(self, prompt: str, *, system: str = "", json_schema: dict[str, object] | None = None) -> Answer:
        """Answer `prompt`. `json_schema`: the shape of the JSON to ask for, which some models ignore. Raises
        `UnitError`."""


class Embeddings(Protocol):
    """Turns texts into vectors."""

    name: str
    model: str

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector for each text. Raises `UnitError`, also for empty texts and for vectors with NaN."""


class PageReader(Protocol):
    """The pages of one source file, opened once and read many times; see `PageConverter.open`."""

    def convert(self, page: PageRef) -> Answer:
        """Return the Markdown of one page, empty for an empty page. Raises `UnitError`, also for an incomplete
        answer."""


class ServiceReader(PageReader, Protocol):
    """The pages of a file, read by a service."""

    def passes(self, page: PageRef, call: Call) -> Iterator[Pass]:
        """Yield readings of one page, until one is good or nothing more can be tried. Each request is made by `call`.
        Raises `UnitError`."""


class PageConverter(Protocol):
    """Turns pages into Markdown. `needs_images`: pages must be drawn first; `paid`: a `ServiceConverter`, whose results
    are worth caching."""

    name: str
    model: str
    needs_images: bool
    paid: bool

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:
        """Return a profile of these pages of the document, which `open` takes to convert single pages; empty if it
        needs none.

        Calls `tick` now and then, which may raise to stop it. Raises `UnitError` if `source` cannot be read.
        """

    def open(self, source: Path, survey: str = "") -> AbstractContextManager[PageReader]:
        """Return a reader over `source` for use in this thread. Raises `UnitError` if it cannot be read."""

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """Return (key, prompt hash), hex: the key covers page content, provider, model, prompt and settings."""


class ServiceConverter(PageConverter, Protocol):
    """Lets a service turn pages into Markdown; opens a `ServiceReader`."""

    rendition: "Rendition"
    """The pictures of pages that it wants."""
    falls_back: bool
    """Whether local conversion does a page of which no reply is good."""
