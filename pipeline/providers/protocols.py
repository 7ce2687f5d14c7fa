"""The ports: what a flow may ask of a provider. Vision models and local conversion both turn pages into Markdown."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
"""The pictures that models look at."""


@dataclass(frozen=True)
class Usage:
    """The tokens that a call was charged for; 0 if the provider does not say.

    `note`: what it said and was not believed, in words; see `token_claim`."""

    input_tokens: int = 0
    output_tokens: int = 0
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """Text from a model. `truncated`: it stopped at its token limit, not at its own end.

    `layout`: what is where on a page, if known: `width`, `height`, `unit`, and its `blocks` in reading order, each with
    `type`, `text` and `bbox` (left, top, right, bottom from the top left corner); `confidence`, 0 to 1, and
    `uncertain`, the share of the text that may be wrong, where text was recognised; `garbled`, words that make no
    sense."""

    text: str
    model: str
    usage: Usage = field(default_factory=Usage)
    latency_ms: int = 0
    truncated: bool = False
    layout: dict[str, Any] | None = None


@dataclass(frozen=True)
class Vectors:
    """One float vector for each input, in the order of the inputs."""

    vectors: list[list[float]]
    model: str
    usage: Usage = field(default_factory=Usage)
    latency_ms: int = 0


def charged(made: Answer | Vectors) -> tuple[str, int, int]:
    """(model, input tokens, output tokens): what a call is charged by."""
    return made.model, made.usage.input_tokens, made.usage.output_tokens


@dataclass(frozen=True)
class PageRef:
    """One page to convert: page `number` (from 1) of `source`. `image`: its picture, if one was rendered.

    `pictures`: the folder to save the pictures on the page in, if at all."""

    source: Path
    number: int
    image: Path | None = None
    pictures: Path | None = None


class Vision(Protocol):
    """Looks at a picture and answers a prompt."""

    name: str
    model: str

    def describe(self, image: bytes, media_type: str, prompt: str) -> Answer:
        """Answer `prompt` about `image` (encoded PNG, JPEG or WebP). Raises `UnitError`."""

    def look(
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
        """Answer `prompt`; with `json_schema`, as JSON of that shape. Raises `UnitError`."""


class Embeddings(Protocol):
    """Turns texts into vectors."""

    name: str
    model: str

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector for each text. Raises `UnitError`, also for empty texts and for vectors that are not finite."""


class PageReader(Protocol):
    """The pages of one source file, opened once and read many times; made by `PageConverter.open`."""

    def convert(self, page: PageRef) -> Answer:
        """The Markdown of one page, empty for an empty page. Raises `UnitError`."""


class PageConverter(Protocol):
    """Turns pages into Markdown. `needs_images`: pages must be rendered first; `paid`: worth caching."""

    name: str
    model: str
    needs_images: bool
    paid: bool

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:
        """What pages that are converted one by one should know about their document, for `open`; empty if nothing.

        Calls `tick` now and then, which may raise to stop it. Raises `UnitError` if `source` cannot be read."""

    def open(self, source: Path, survey: str = "") -> AbstractContextManager[PageReader]:
        """A reader over `source`; use it in the thread that opened it. Raises `UnitError` if it cannot be read."""

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """(key, prompt hash), hex: the key covers page content, provider, model, prompt and settings."""
