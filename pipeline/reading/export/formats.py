"""The formats of results."""

from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """The format of a result: Markdown, the blocks of each page with their boxes, HTML, these as a DoclingDocument,
    plain text, or the submitted file as a searchable PDF."""

    MD = "md"
    JSON = "json"
    HTML = "html"
    DOCLING = "docling"
    TXT = "txt"
    PDF = "pdf"

    @property
    def suffix(self) -> str:
        """The suffix of files in this format. The PDF's never makes it take the name of its source."""
        return {Format.DOCLING: ".docling.json", Format.PDF: ".searchable.pdf"}.get(self, f".{self}")

    @property
    def media_type(self) -> str:
        """The type for HTTP."""
        return {
            Format.MD: "text/markdown; charset=utf-8",
            Format.HTML: "text/html; charset=utf-8",
            Format.TXT: "text/plain; charset=utf-8",
            Format.PDF: "application/pdf",
        }.get(self, "application/json")


@dataclass(frozen=True)
class Shape:
    """The parts of a result. `markers`: keep the marks between the pages of Markdown; `split`: also write a file for
    each page, in `NAME.pages`; `tables`: also write each table as CSV, in `NAME.tables`."""

    markers: bool = True
    split: bool = False
    tables: bool = False

    @property
    def options(self) -> dict[str, str | bool]:
        """What a result's record keeps of it: the values that differ from the defaults."""
        facts = {"page_markers": (self.markers, True), "split": (self.split, False), "tables": (self.tables, False)}
        return {name: value for name, (value, default) in facts.items() if value is not default}
