"""Limits and timings of the documents flow."""

import os

from pydantic import BaseModel, Field


class DocumentSettings(BaseModel):
    """Names in brackets are those of the design: docs/sources/documents.md#settings."""

    converter_count: int = Field(default_factory=lambda: max(2, os.cpu_count() or 2), ge=1, le=256)
    """Processes that convert pages on this machine, and lanes of a locally converted document [converterCount: 3;
    here one for each core, since a local page is pure computation]."""
    lease_s: float = Field(default=300, gt=0)
    """How long a claim lasts even if its worker seems alive [taskTimeout: 5 min]."""
    page_timeout_s: float = Field(default=120, gt=0)
    """The longest time for one page [pageTimeout: 2 min]."""
    split_timeout_s: float = Field(default=1800, gt=0, le=7000)
    """The longest time for splitting one document: inspecting all of it, and rendering each page if the provider needs
    pictures."""
    reader_memory_mb: int = Field(default=2_000, ge=200)
    """The memory limit of a process that reads a page or surveys a document; text recognition takes about 1,000."""
    quantum_s: float = Field(default=1.0, ge=0, le=60)
    """How long a lane works on one document before others get their turn."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0], max_length=20)
    """Waits before the second, third … attempt after a transient error; up to a fifth is added as jitter. A page has
    one more attempt than waits, then it fails permanently."""
    max_upload_mb: int = Field(default=500, ge=1)
    max_pages: int = Field(default=20_000, ge=1)
    max_pixels: int = Field(default=25_000_000, ge=10_000)
    """Pixels of one page image; larger pages are rendered at a lower resolution."""
    max_page_points: float = Field(default=14_400, gt=0)
    """Longest side of a page in points (1/72 inch); the limit that PDF itself sets. Longer pages are refused."""
    ocr_dpi: int = Field(default=200, ge=72, le=300)
    """Resolution at which pages are rendered for text recognition. Up to 200, an A4 page is read at 3 million pixels
    (175 dpi); above, at more."""
    ocr_pictures: bool = True
    """Recognise text in pictures, even on pages that have a text layer."""
    keep_headers: bool = False
    """Local conversion keeps headers, footers, page numbers and watermarks instead of removing them."""
    stale_temp_s: float = Field(default=24 * 3600, gt=0)
    """Age at which a temp folder that no running document uses is removed (docs/sources/documents.md#cleanup)."""
    page_pictures_mb: int = Field(default=500, ge=1)
    """The total size of kept page pictures for people; the least recently viewed ones are removed."""
    cache: bool = True
    """Reuse earlier results for the same page, model, prompt and settings instead of calling the provider."""
