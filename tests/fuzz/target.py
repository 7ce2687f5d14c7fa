"""What is fuzzed: a function that takes bytes as a stranger sends them, and the errors that it may answer with."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each target: inputs as they usually are (`usual…`), and those that once failed."""


@dataclass(frozen=True)
class Target:
    """A promise about any bytes: `run` returns, or raises one of `raises`. It asserts whatever else it promises.

    `made`: inputs to begin with, besides those of the corpus. `words`: what inputs are made of, such as names of
    fields. `shaped`: inputs are JSON, so that a value in them may be exchanged for any other.
    """

    name: str
    run: Callable[[bytes], object]
    raises: tuple[type[Exception], ...] = ()
    made: Callable[[], Iterable[bytes]] = tuple
    words: Sequence[str] = ()
    shaped: bool = False
    slow: bool = False
    """Each input takes tens of milliseconds: a short run tries fewer."""

    def __call__(self, data: bytes) -> None:
        with suppress(*self.raises):
            self.run(data)

    @cached_property
    def seeds(self) -> list[bytes]:
        """What is always tried first."""
        return self.usual + [path.read_bytes() for path in self._files if not path.name.startswith("usual")]

    @cached_property
    def usual(self) -> list[bytes]:
        """Those of them with which nothing is wrong."""
        return [*self.made(), *(path.read_bytes() for path in self._files if path.name.startswith("usual"))]

    @property
    def _files(self) -> list[Path]:
        return sorted((CORPUS / self.name).iterdir()) if (CORPUS / self.name).is_dir() else []


@contextmanager
def saved(data: bytes, name: str = "input") -> Iterator[Path]:
    """A file with these bytes."""
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-", dir=_memory()) as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        yield path


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def text_of(data: bytes) -> str:
    """Text with everything that text may hold: NULs, controls and, for bytes that are not UTF-8, lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def json_seeds(*values: object) -> Callable[[], list[bytes]]:
    """Values as a model would write them."""
    return lambda: [json.dumps(value, ensure_ascii=False).encode() for value in values]


def texts(*values: str) -> Callable[[], list[bytes]]:
    """Texts as bytes."""
    return lambda: [value.encode("utf-8", "surrogateescape") for value in values]


def is_storable(text: str) -> bool:
    """Whether any database takes it."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
