"""Ensure that database and data folder belong together: both carry one installation id, created on first use.

With the wrong database, every file in the folder looks like an orphan; with the wrong folder, every file is missing.
So all code that writes or removes files checks first.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import structlog
from sqlalchemy import String, select, update
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine import privacy
from pipeline.engine.errors import UserError
from pipeline.engine.tables import Base, UtcDateTime, insert_if_absent, table_of
from pipeline.settings import Settings
from pipeline.storage.context import Context
from pipeline.storage.database import Database

log = structlog.get_logger(__name__)
ADVICE = (
    "To use the two together from now on, run `penstock migrate --adopt`; clean-up then removes files of the folder "
    "that this database does not know"
)
_WRITTEN_S = 1.0
"""How long to wait for another process to finish writing the mark."""


class Installation(Base):
    """The only row holds the database's installation id."""

    __tablename__ = "installation"

    only: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    id: Mapped[str] = mapped_column(String(32))
    bound: Mapped[bool] = mapped_column(default=False)
    """Whether a data folder carries the id: a folder without it is another, or its disk is not mounted."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


INSTALLATION = table_of(Installation)


class ForeignFolder(UserError):
    """The database and the data folder do not belong together."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}. {ADVICE}.", code="installation")


@dataclass(frozen=True)
class Pair:
    """The ids of a database and a data folder; None for a missing one."""

    data_dir: Path
    database: str | None
    bound: bool
    folder: str | None
    holds_files: bool

    @property
    def fits(self) -> bool:
        return self.database is not None and self.database == self.folder

    @property
    def new(self) -> bool:
        """Whether neither was used before: the folder has no mark and no files, and the database is bound to no
        folder."""
        return self.folder is None and not self.bound and not self.holds_files

    @property
    def problem(self) -> str:
        """Why they cannot be used together, as a sentence without its full stop; empty if they can."""
        if self.fits or self.new:
            return ""
        if self.folder is None and self.bound:
            return (
                f"the data folder {self.data_dir} does not carry the mark of this database's installation, "
                f"{(self.database or '')[:8]}: check that its disk is mounted, and PENSTOCK_DATA_DIR"
            )
        folder = "holds files" if self.folder is None else f"belongs to installation {self.folder[:8] or 'unknown'}"
        database = f"belongs to installation {(self.database or '')[:8]}" if self.bound else "is new"
        return (
            f"the database {database}, but the data folder {self.data_dir} {folder}: check PENSTOCK_DATABASE_URL and "
            "PENSTOCK_DATA_DIR"
        )


def mark(settings: Settings) -> Path:
    """Return the path of the file in the data folder that carries the installation's id."""
    return settings.data_dir / "installation"


def read_pair(db: Database, settings: Settings) -> Pair:
    """Read the ids of the database and of the data folder, without writing."""
    with db.read() as session:
        row = session.execute(select(INSTALLATION.c.id, INSTALLATION.c.bound)).one_or_none()
    folder = _read(mark(settings))
    stores = (settings.upload_dir, settings.output_dir, settings.screenshot_dir)
    holds_files = folder is None and any(any(store.iterdir()) for store in stores if store.is_dir())
    return Pair(settings.data_dir, row.id if row else None, bool(row and row.bound), folder, holds_files)


def check(db: Database, settings: Settings) -> None:
    """Raise `ForeignFolder` unless database and data folder belong together. On first use, write both ids."""
    pair = read_pair(db, settings)
    if pair.fits and pair.bound:
        return
    if pair.database is None:
        row = {"only": 1, "id": uuid4().hex, "bound": False, "created_at": datetime.now(UTC)}
        db.run(lambda tx: insert_if_absent(tx, INSTALLATION, row))
        pair = read_pair(db, settings)
    if pair.new:
        _write(mark(settings), pair.database or "")
        pair = read_pair(db, settings)
    if not pair.fits:
        # Another process may have written the mark and then a file between our two reads.
        pair = read_pair(db, settings)
    if not pair.fits:
        raise ForeignFolder(pair.problem)
    db.run(lambda tx: tx.execute(update(INSTALLATION).values(bound=True)))


def belong_together(context: Context) -> bool:
    """Whether database and data folder belong together, so that clean-up may remove files. If not, the log says why. On
    first use, writes both ids."""
    try:
        check(context.db, context.settings)
    except ForeignFolder as error:
        log.error("clean_up.refused", reason=str(error))  # noqa: TRY400  # not a defect: no traceback
        return False
    return True


def adopt(db: Database, settings: Settings) -> None:
    """Bind the data folder to this database from now on, whatever it belonged to before."""
    with suppress(ForeignFolder):
        check(db, settings)
        return
    mark(settings).unlink(missing_ok=True)
    _write(mark(settings), read_pair(db, settings).database or "")
    check(db, settings)


def _write(path: Path, installation_id: str) -> None:
    """Write a missing mark. If several processes try at once, one succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, privacy.PRIVATE_FILE)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{installation_id}\n")
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> str | None:
    deadline = time.monotonic() + _WRITTEN_S
    while True:
        try:
            content = path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        if content or time.monotonic() > deadline:
            return content
        time.sleep(0.01)
