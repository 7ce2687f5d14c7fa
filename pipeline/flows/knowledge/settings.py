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
    """The provider that makes the vectors of new bases. Empty: lexical ones, made here, which match words, not
    meaning."""
    embeddings_model: str = ""
    """Its model, if not the provider's own."""
    further_providers: list[str] = Field(default_factory=list)
    """Other providers that bases may name."""
    chunk_tokens: int = Field(default=512, ge=32, le=8192)
    """Tokens of a chunk at most, for new bases."""
    chunk_overlap: int = Field(default=64, ge=0, le=4096)
    """Tokens that a chunk repeats from the previous chunk, for new bases."""
    batch_size: int = Field(default=100, ge=1, le=200)
    """Chunks of one call for vectors [100-200]."""
    global_concurrency: int = Field(default=4, ge=1, le=1024)
    """Items under way at once, over all bases [globalConcurrency: 4]."""
    per_base_concurrency: int = Field(default=2, ge=1, le=256)
    """Items of one base under way at once [perBaseConcurrency: 2]."""
    io_concurrency: int = Field(default=3, ge=1, le=256)
    """Items read at once [ioConcurrency: 2-3]."""
    embed_concurrency: int = Field(default=4, ge=1, le=256)
    """Calls for vectors at once, for each provider [embeddingConcurrency: 2-4]."""
    write_concurrency: int = Field(default=2, ge=1, le=64)
    """Items that write their vectors at once [writeConcurrency: 2]."""
    max_queue_size: int = Field(default=100_000, ge=1)
    """Most waiting items over all bases; beyond it, Penstock refuses new items [maxQueueSize]."""
    large_mb: float = Field(default=20, gt=0)
    """Files of at least this size are large, and other items whose text has a twentieth of it: at most half of the
    items under way may be large."""
    warn_file_mb: float = Field(default=50, gt=0)
    """From this size on, Penstock warns that a file takes long."""
    max_file_mb: int = Field(default=500, ge=1, le=10_000)
    """The largest accepted file."""
    read_weight: int = Field(default=60, ge=0, le=100)
    """Percent of the progress for reading and chunking; embedding and writing are the rest."""
    backoff_s: list[float] = Field(default=[0.5, 1.0], max_length=10)
    """Waits before the second, third … call for vectors [500 ms, factor 2, 2-3 attempts]."""
    longest_wait_s: float = Field(default=10, gt=0)
    """The longest of these waits; a wait that a server requests may be longer [max: 10 s]."""
    read_backoff_s: list[float] = Field(default=[2.0, 20.0], max_length=10)
    """Waits before further attempts to read a source after an error that may pass, such as 503 or a locked file."""
    write_backoff_s: list[float] = Field(default=[0.5], max_length=10)
    """Waits before further attempts to write [2 attempts]."""
    read_timeout_s: float = Field(default=300, gt=0, le=7200)
    """How long reading one file may take."""
    read_memory_mb: int = Field(default=1500, ge=128)
    """Memory of the process that reads a file."""
    max_chars: int = Field(default=20_000_000, ge=1000)
    """Most characters of an item's text."""
    fetch_timeout_s: float = Field(default=30, gt=0, le=600)
    """How long fetching one address may take."""
    fetch_mb: int = Field(default=50, ge=1, le=2000)
    """The largest page to fetch."""
    sitemap_pages: int = Field(default=500, ge=1, le=50_000)
    """Most pages of a sitemap."""
    sitemap_timeout_s: float = Field(default=3600, gt=0)
    """How long reading all pages of a sitemap may take."""
    allow_private_addresses: list[IPv4Network | IPv6Network] = Field(default_factory=list)
    """Networks of private addresses from which Penstock may fetch, such as `10.1.0.0/16`."""

    @field_validator("backoff_s", "read_backoff_s", "write_backoff_s")
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
        """Return every configured provider of vectors, each once; `local` only if a setting names it."""
        return [name for name in dict.fromkeys([self.embeddings_provider, *self.further_providers]) if name]


def own(settings: Settings) -> KnowledgeSettings:
    """Return the flow's settings as configured, without live changes. Raises `UnreadableSettingsError`."""
    section = settings.section("knowledge", KnowledgeSettings)
    for name in section.further_providers:
        if name not in settings.providers:
            known = ", ".join(sorted(settings.providers)) or "none"
            raise UnreadableSettingsError(
                f"PENSTOCK_KNOWLEDGE__FURTHER_PROVIDERS: there is no provider '{name}' (known: {known})"
            )
    return section
