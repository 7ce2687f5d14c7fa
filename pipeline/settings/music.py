"""Settings of the music flow: the source of songs, and the providers that analyse them."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator


class MusicSettings(BaseModel):
    """Rules: docs/sources/music.md#settings."""

    server_url: str = ""
    """A Subsonic or OpenSubsonic server, such as Navidrome: `https://music.example.org`."""
    user: str = ""
    """The user on that server."""
    password: SecretStr = SecretStr("")
    """The password, which Penstock sends only as a salted token and never logs or stores."""
    folder: Path | None = None
    """A folder of audio files, read from their tags, for people without a server."""
    provider: str = ""
    """The provider that writes the metadata. Empty: Penstock syncs songs and finds them by names, albums and genres,
    but does not describe them."""
    model: str = ""
    """Its model, if not the provider's own."""
    embeddings_provider: str = ""
    """The provider that makes the vectors. Empty: lexical vectors, made on this machine, which know words but not their
    meaning."""
    embeddings_model: str = ""
    """Its model."""
    page_size: int = Field(default=500, ge=1, le=500)
    """How many songs one call asks the server for."""
    timeout_s: float = Field(default=30, gt=0, le=600)
    """Hard limit of one call to the music server, in seconds."""
    lease_s: float = Field(default=300, gt=0)
    """Seconds after which a claim on a batch ends even if its worker seems alive; at least the providers' `TIMEOUT_S` +
    60."""
    backoff_s: list[float] = Field(default=[5.0, 10.0], max_length=20)
    """Waits before the second and third attempt of a batch's step, in seconds.

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
