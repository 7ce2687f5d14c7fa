"""Settings of knowledge: reading, chunking, embedding, and their limits.

Rules: docs/sources/knowledge.md#settings.
"""

from ipaddress import IPv4Network, IPv6Network
from typing import Self

from pydantic import BaseModel, Field, field_validator, model_validator

from pipeline.settings import Settings
from pipeline.settings.environment import UnreadableSettingsError


class KnowledgeSettings(BaseModel):
    """`PENSTOCK_KNOWLEDGE__…`, and the table `[knowledge]`."""

    embeddings_provider: str = ""
    """The provider of vectors for new bases. Empty: lexical vectors from this machine, which match words, not
    meaning."""
    embeddings_model: str = ""
    further_providers: list[str] = Field(default_factory=list)
    """Other providers of vectors that bases may name."""
    chunk_tokens: int = Field(default=512, ge=32, le=8192)
    """The most tokens of a chunk, for new bases."""
    chunk_overlap: int = Field(default=64, ge=0, le=4096)
    """Tokens that a chunk repeats from the chunk before, for new bases."""
    batch_size: int = Field(default=100, ge=1, le=200)
    """Chunks that are embedded in one call [100-200]."""
    global_concurrency: int = Field(default=4, ge=1, le=1024)
    """Items under way at once, over all bases [globalConcurrency: 4]."""
    per_base_concurrency: int = Field(default=2, ge=1, le=256)
    """Items of one base under way at once [perBaseConcurrency: 2]."""
    io_concurrency: int = Field(default=3, ge=1, le=256)
    """Items read at once [ioConcurrency: 2-3]."""
    embed_concurrency: int = Field(default=4, ge=1, le=256)
    """Calls for vectors at once, for each provider [embeddingConcurrency: 2-4]."""
    write_concurrency: int = Field(default=2, ge=1, le=64)
    """Items whose vectors are written at once [writeConcurrency: 2]."""
    max_queue_size: int = Field(default=100_000, ge=1)
    """Items that may wait in line over all bases; Penstock refuses further items [maxQueueSize]."""
    large_mb: float = Field(default=20, gt=0)
    """From this workload on an item is large; at most half of the items under way may be large."""
    warn_file_mb: float = Field(default=50, gt=0)
    """From this size on, Penstock warns that a file will take long."""
    max_file_mb: int = Field(default=500, ge=1, le=10_000)
    """The largest accepted file."""
    read_weight: int = Field(default=60, ge=0, le=100)
    """The percentage of progress for reading and chunking; embedding and writing are the rest."""
    backoff_s: list[float] = Field(default=[0.5, 1.0], max_length=10)
    """Waits before the second, third … call for vectors [500 ms, factor 2, 2-3 attempts]."""
    longest_wait_s: float = Field(default=10, gt=0)
    """The longest wait of `backoff_s`; a wait that a server asks for may be longer [max: 10 s]."""
    write_backoff_s: list[float] = Field(default=[0.5], max_length=10)
    """Waits before the second, third … attempt to write [2 attempts]."""
    read_timeout_s: float = Field(default=300, gt=0, le=7200)
    """The longest time for reading one file."""
    read_memory_mb: int = Field(default=1500, ge=128)
    """Memory of the child process that reads a file."""
    max_chars: int = Field(default=20_000_000, ge=1000)
    """The most characters of an item's text."""
    fetch_timeout_s: float = Field(default=30, gt=0, le=600)
    """The longest time for fetching one address."""
    fetch_mb: int = Field(default=50, ge=1, le=2000)
    """The largest page that Penstock fetches."""
    sitemap_pages: int = Field(default=500, ge=1, le=50_000)
    """The most pages that are read of a sitemap."""
    sitemap_timeout_s: float = Field(default=3600, gt=0)
    """The longest time for reading all pages of a sitemap."""
    allow_private_addresses: list[IPv4Network | IPv6Network] = Field(default_factory=list)
    """Private networks from which Penstock may fetch, such as `10.1.0.0/16`."""

    @field_validator("backoff_s", "write_backoff_s")
    @classmethod
    def _no_negative_waits(cls, value: list[float]) -> list[float]:
        if any(wait < 0 for wait in value):
            raise ValueError("waits must not be negative")
        return value

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> Self:
        if self.chunk_overlap >= self.chunk_tokens:
            raise ValueError("knowledge: chunk_overlap must be below chunk_tokens")
        return self

    @property
    def providers(self) -> list[str]:
        """Return every provider of vectors for knowledge, once."""
        return [name for name in dict.fromkeys([self.embeddings_provider, *self.further_providers]) if name]


def own(settings: Settings) -> KnowledgeSettings:
    """Return the flow's settings. Raises `UnreadableSettingsError`."""
    section = settings.section("knowledge", KnowledgeSettings)
    for name in section.further_providers:
        if name not in settings.providers:
            known = ", ".join(sorted(settings.providers)) or "none"
            raise UnreadableSettingsError(
                f"PENSTOCK_KNOWLEDGE__FURTHER_PROVIDERS: there is no provider '{name}' (known: {known})"
            )
    return section
