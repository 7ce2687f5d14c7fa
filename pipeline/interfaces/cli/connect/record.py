"""What the connector remembers of a document between taking it and writing back, so that it survives a kill."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pipeline.interfaces.cli.connect.client import PaperlessDocument
from pipeline.reading.files.user_file import write_text


@dataclass
class Record:
    """A document of paperless as it was when taken, and how far it is."""

    id: int
    checksum: str
    """Of its source."""
    content: str
    """The hash of its text; once paperless consumed our version, of the text that paperless read in that."""
    title: str
    document: str = ""
    """The id of the document in Penstock; empty before the submission."""
    pdf_sha256: str = ""
    """Of the searchable PDF, which is stored beside the record; empty before."""
    pdf_md5: str = ""
    sent_at: float = 0.0
    """The time of the latest upload of that PDF; 0 before."""
    task: str = ""
    """The task that consumes it; empty if no answer named one."""
    consumed: bool = False
    failed: str = ""
    """Why the document failed; empty while it is under way."""

    @property
    def uploaded(self) -> str:
        """The SHA-256 of the PDF if it may be in paperless because of us; a file that needs no text layer is its own
        searchable PDF."""
        return self.pdf_sha256 if self.sent_at else ""

    @classmethod
    def of(cls, document: PaperlessDocument) -> "Record":
        return cls(document.id, str(document.source().checksum), digest(document.content), document.title)


_RECORD = TypeAdapter(Record)


class Records:
    """A folder of records, one file each. Raises `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, document_id: int) -> Record | None:
        """Return the record; None without a readable one."""
        try:
            return _RECORD.validate_json(self._path(document_id).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def save(self, record: Record) -> None:
        write_text(self._path(record.id), json.dumps(asdict(record), indent=2) + "\n")

    def keep_pdf(self, record: Record, pdf: bytes) -> None:
        """Store the searchable PDF and its checksums, before any upload."""
        path = self.pdf(record.id)
        temporary = path.with_suffix(".part")
        temporary.write_bytes(pdf)
        temporary.replace(path)
        record.pdf_sha256 = hashlib.sha256(pdf).hexdigest()
        record.pdf_md5 = hashlib.md5(pdf, usedforsecurity=False).hexdigest()
        self.save(record)

    def remove(self, document_id: int) -> None:
        """Remove the record, if any, and its PDF."""
        self._path(document_id).unlink(missing_ok=True)
        self.pdf(document_id).unlink(missing_ok=True)

    def pdf(self, document_id: int) -> Path:
        """Return the path of the searchable PDF, which uploads repeat byte by byte after a kill."""
        return self._folder / f"{document_id}.pdf"

    def under_way(self) -> set[int]:
        """Return the ids of the documents with a record that have not failed."""
        records = [self.load(int(path.stem)) for path in self._folder.glob("*.json") if path.stem.isdecimal()]
        return {record.id for record in records if record is not None and not record.failed}

    def _path(self, document_id: int) -> Path:
        return self._folder / f"{document_id}.json"


def digest(text: str | None) -> str:
    """Return the hash of a text without the blanks around it, which paperless removes."""
    return hashlib.sha256((text or "").strip().encode("utf-8", "replace")).hexdigest()
