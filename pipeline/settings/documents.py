"""Limits and timings of the documents flow."""

import os

from pydantic import BaseModel, Field


class DocumentSettings(BaseModel):
    """Names in brackets are those of the design: docs/sources/documents.md#settings."""

    converter_count: int = Field(default_factory=lambda: max(2, os.cpu_count() or 2), ge=1, le=256)
    """Processes of the embedded `cpu` worker, and how many pages of one document are converted on this machine at
    once."""
    lease_s: float = Field(default=300, gt=0)
    """Seconds after which a claim ends even if its worker seems alive. It must be longer than any page may take."""
    page_timeout_s: float = Field(default=120, gt=0)
    """How many seconds one page may take on the `cpu` queue, and its picture for a provider; a slower page fails
    without another attempt. On the providers' queues, the provider's `TIMEOUT_S` is the limit of a call."""
    split_timeout_s: float = Field(default=1800, gt=0, le=7000)
    """How many seconds splitting one document may take: the survey, and a picture of each page if the provider needs
    them. At most 7000."""
    reader_memory_mb: int = Field(default=2_000, ge=200)
    """How much memory (MB) one page, or the survey of a document, may take in the process that reads it; text
    recognition alone takes about 1000. At least 200."""
    quantum_s: float = Field(default=1.0, ge=0, le=60)
    """How many seconds a lane on `cpu` stays with one document before others have their turn."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0], max_length=20)
    """Waits before the second, third … attempt of a page after a transient error, in seconds; up to a fifth is added at
    random. There is one more attempt than there are waits."""
    max_upload_mb: int = Field(default=500, ge=1)
    """Largest file."""
    max_pages: int = Field(default=20_000, ge=1)
    """Most pages of a file."""
    max_pixels: int = Field(default=25_000_000, ge=10_000)
    """Most pixels of one page picture; larger pages are rendered at a lower resolution."""
    max_page_points: float = Field(default=14_400, gt=0)
    """Longest side of a PDF page in points (1/72 inch); files with a longer one are refused."""
    ocr_dpi: int = Field(default=200, ge=72, le=300)
    """Resolution at which pages are rendered for text recognition, 72 to 300. Up to 200 dpi a page has at most 3
    million pixels (A4: 175 dpi); above, proportionally more, which takes more memory and time: at 300, 1.7 GB a process
    instead of 1 GB, and twice the time."""
    ocr_pictures: bool = True
    """Recognise text in pictures even on pages that have a text layer."""
    keep_headers: bool = False
    """Keep headers, footers, page numbers and watermarks in the text, as paragraphs; else only blocks hold them."""
    keep_active_content: bool = False
    """Keep scripts, actions that start programs or send forms, and embedded files in searchable PDFs. A submitted file
    is never changed."""
    stale_temp_s: float = Field(default=24 * 3600, gt=0)
    """Age in seconds at which files that belong to no document, and page pictures of documents at rest, are removed."""
    page_pictures_mb: int = Field(default=500, ge=1)
    """Most MB of pictures of pages for viewers; the least recently viewed pictures go first."""
    escalate: str = ""
    """The provider to which doubtful and failed pages go by themselves, for documents whose provider has no `ESCALATE`
    of its own; empty: none."""
    escalate_budget: str = Field(default="", pattern=r"^(\d{1,7}(\.\d{1,6})?|\d{1,7}p)?$")
    """The budget of each such document without one of its own: money, such as `2.00`, or pages, such as `20p`. Empty:
    only the provider's `DAILY_SPEND_CAP` limits it."""
    escalate_wait_s: float = Field(default=3600, gt=0)
    """After how many seconds without a page from that provider a document keeps its present texts and is completed."""
    cache: bool = True
    """Reuse the result of an identical page picture, model, prompt and settings instead of calling again."""
