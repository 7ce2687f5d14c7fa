"""Settings of the music flow: the source of songs, and the providers that analyse them."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator


class MusicSettings(BaseModel):
    """Rules: docs/sources/music.md#settings."""

    server_url: str = ""
    """A Subsonic or OpenSubsonic server, such as Navidrome: `https://music.example.org`."""
    user: str = ""
    password: SecretStr = SecretStr("")
    folder: Path | None = None
    """A folder of audio files, for people without a server; their tags are read."""
    provider: str = ""
    """The provider that writes the metadata. Empty: songs are synced, but not analysed."""
    model: str = ""
    embeddings_provider: str = ""
    """The provider that makes the vectors. Empty: lexical vectors from this machine, which match words, not meaning."""
    embeddings_model: str = ""
    page_size: int = Field(default=500, ge=1, le=500)
    """Songs per request to the server, which allows at most 500."""
    timeout_s: float = Field(default=30, gt=0, le=600)
    """Hard limit of one call to the music server."""
    lease_s: float = Field(default=300, gt=0)
    """How long a batch's claim lasts; longer if the provider's time-out is longer."""
    backoff_s: list[float] = Field(default=[5.0, 10.0], max_length=20)
    """Waits before the second, third … attempt of a batch's step: exponential from 5 s.

    Rule: docs/sources/music.md#batches.
    """

    @field_validator("server_url")
    @classmethod
    def _http_without_password(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http:// or https:// URL")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("must be an address alone: user and password have settings of their own")
        return value.rstrip("/").removesuffix("/rest")

    @field_validator("folder")
    @classmethod
    def _full_path(cls, value: Path | None) -> Path | None:
        return value.expanduser().resolve() if value else None
