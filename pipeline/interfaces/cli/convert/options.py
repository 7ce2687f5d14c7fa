"""The options that `penstock convert` and `penstock watch` share, and those that a result's record keeps."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.control_characters import printable_line
from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.command import all_settings, formats_of
from pipeline.interfaces.cli.output import err
from pipeline.reading.export.formats import Format, Shape

if TYPE_CHECKING:
    from pipeline.flows.documents.submission import Options
    from pipeline.interfaces.cli.results import Origin

Pages = Annotated[str, typer.Option("--pages", "--page-range", help="Pages to convert, such as 1-5,7. Default: all.")]
Provider = Annotated[str, typer.Option(help="A configured provider, or 'local' (no service).")]
Model = Annotated[str, typer.Option(help="A model of the provider. Default: the provider's own.")]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="If pages fail, write the others and mark the gaps (exit code 3).")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Pay for every page again: do not reuse stored answers.")]
Pictures = Annotated[
    bool, typer.Option("--pictures", help="Keep pictures in NAME.pictures, linked from the Markdown (local, nodes).")
]
Escalate = Annotated[
    str,
    typer.Option(metavar="NAME", help="The provider for pages that are doubtful or fail; 'none': leave them."),
]
Budget = Annotated[
    str, typer.Option(metavar="MOST", help="The most that --escalate may spend on a file: 2.00 (money), 20p (pages).")
]


_MAX_PASSWORD = 1000


def can_ask() -> bool:
    """Whether a user can answer at the terminal."""
    return sys.stdin.isatty() and err.is_terminal


def can_open(source: Path) -> bool:
    """Whether a password from the terminal may open the file: the user can type it, and the file is a PDF."""
    from pipeline.reading.files.filetype import detect_file

    return can_ask() and detect_file(source) == "pdf"


def worded(refusal: UserError) -> str:
    """Return a refusal's message with the option for what other interfaces call a field."""
    return str(refusal).replace("give it as `password`", "give it with --password or --password-file")


def ask_password(name: str = "") -> str:
    """Ask for the password of the file called `name`, or of all encrypted PDFs. The terminal shows none of it."""
    from getpass import getpass

    return getpass(f"Password of {printable_line(name)[:60] if name else 'encrypted PDFs'}: ")


def read_password(*, ask: bool, file: str, stdin_is_taken: bool) -> str:
    """Return the password that `--password` asks for or `--password-file` names; empty without either.

    Options never hold the password itself, since other users see a process's arguments. Raises `UserError`.
    """
    if ask and file:
        raise UserError("--password asks for the password, and --password-file reads it: choose one", code="usage")
    if ask:
        if not can_ask():
            raise UserError("--password asks at a terminal: without one, use --password-file", code="usage")
        return ask_password()
    if file == "-" and stdin_is_taken:
        raise UserError("standard input is a document already: read the password from a file", code="usage")
    if not file:
        return ""
    try:
        with nullcontext(sys.stdin) if file == "-" else Path(file).open(encoding="utf-8") as lines:
            password = lines.readline(_MAX_PASSWORD).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"the password cannot be read from {file}: {why}", code="usage") from None
    if not password:
        raise UserError(f"{file} has no password in its first line", code="usage")
    return password


Split = Annotated[
    str, typer.Option(metavar="pages", help="pages: also write a file for each page, NAME.pages/NAME-0001.md.")
]
Tables = Annotated[
    str, typer.Option(metavar="csv", help="csv: also write each table as a file, NAME.tables/NAME-p0001-1.csv.")
]


def forms_of(formats: Sequence[str] | None) -> tuple[Format, ...]:
    """The formats of an option that may be repeated, each once; Markdown without the option. Raises
    `typer.BadParameter`."""
    return tuple(dict.fromkeys(form for named in formats or [] for form in formats_of(named))) or (Format.MD,)


def shape_of(split: str, tables: str, *, markers: bool) -> Shape:
    """The parts of a result by its options. Raises `UserError` for unknown ones."""
    for option, value, only in (("--split", split, "pages"), ("--tables", tables, "csv")):
        if value not in {"", only}:
            raise UserError(f"{option} takes {only}, not {value}", code="usage")
    return Shape(markers, split=bool(split), tables=bool(tables))


@dataclass(frozen=True)
class Wish:
    """How to convert, and what to do with existing results. Raises `UserError` for options that suit no file."""

    options: "Options"
    shape: Shape = Shape()  # noqa: RUF009  # it is frozen
    force: bool = False
    """Replace every existing result."""
    keep: bool = False
    """Replace no existing result."""

    def __post_init__(self) -> None:
        from pipeline.flows.documents.service import other_provider
        from pipeline.providers import registry
        from pipeline.reading.files.source import check_page_range

        check_page_range(self.options.page_range)
        settings = all_settings()
        provider = self.options.provider or settings.provider
        if self.options.escalate or self.options.budget:
            other_provider(settings, provider, self.options.escalate, self.options.budget)
        try:
            registry.check(settings, provider, self.options.model)
        except UserError as error:
            # It is a usage error only if the user typed the provider.
            raise error if self.options.provider else UserError(str(error), code="settings") from error

    @property
    def redo(self) -> bool:
        """Whether to convert files whose results are up to date."""
        return self.options.fresh or not self.options.use_cache

    def origin(self, source: Path, form: Format, label: Path | None = None) -> "Origin":
        """The record of a result of `source` in a format: its hash and these options. `label`: its path to record, if
        another.

        Raises `OSError`, also for a file that is not an ordinary one, or is larger than a document may be.
        """
        from pipeline.interfaces.cli.results import Origin, sha256
        from pipeline.providers import registry
        from pipeline.settings import get_settings

        if not source.is_file():  # opening a named pipe would block
            raise FileNotFoundError(source)
        settings, options = get_settings(), self.options
        if (
            source.stat().st_size > settings.documents.max_upload_mb * 1_000_000
        ):  # refuse before reading: a sparse file may claim a terabyte
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(source))
        provider = options.provider or settings.provider
        made_with: dict[str, str | bool] = {
            "pages": "".join(options.page_range.split()),
            "provider": provider,
            "model": registry.model_name(settings, provider, options.model),
            "pictures": options.pictures,
            "format": form.value,
            **self.shape.options,
        }
        if options.escalate or options.budget:
            made_with |= {"escalate": options.escalate, "budget": options.budget}
        return Origin(label or source, sha256(source), made_with)
