"""Limits and address of the REST API."""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, Field, field_validator, model_validator

HostName = Annotated[str, Field(min_length=1, max_length=253)]


class ApiSettings(BaseModel):
    """Settings of `penstock api`, and of the API that is part of `penstock up`."""

    LIVE: ClassVar[Mapping[str, str]] = {
        "requests_per_min": "requests of one key, or of one address without a key, in a minute; 0: no limit",
        "upload_mb_per_hour": "megabytes that one key may upload in an hour; 0: no limit",
        "pages_per_day": "pages that one key may have converted in a day, retries included; 0: no limit",
        "spend_per_day": "what one key's requests may cost in a day of the server's clock; 0: no cap",
        "streams_per_key": "streams of events of one key that are open at once",
    }
    """The settings that can be changed live, with descriptions."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    """The address to listen on. Callers from other machines need a key."""
    port: int = Field(default=8484, ge=1, le=65_535)
    with_stack: bool = True
    """Whether `penstock up` also runs the API."""
    tls_certificate: str = ""
    """A PEM file with the certificate and its chain. Empty: plain HTTP, for this machine or behind a proxy."""
    tls_key: str = ""
    tls_by_proxy: bool = False
    """A proxy in front terminates TLS, so the API may listen beyond this machine without TLS."""
    prefix: str = ""
    """The path at which a reverse proxy serves the API, such as `/penstock`; requests may omit it."""
    require_key: bool = False
    """Whether callers on this machine need a key as well."""
    read_only: bool = False
    """Refuse every request that would change something."""
    mcp_write: bool = False
    """Whether assistants without a key may use the tools of `/mcp` that change something."""
    allowed_hosts: list[HostName] = Field(default_factory=list)
    """Host names under which the API may be called, besides this machine's own; `*` for any."""
    allowed_origins: list[HostName] = Field(default_factory=list)
    """Web pages of other hosts that may change something, such as `https://desk.example.org`."""
    max_upload_mb: int = Field(default=500, ge=1)
    max_json_mb: int = Field(default=4, ge=1, le=64)
    """The largest body besides uploads. It is held in memory."""
    requests_per_min: int = Field(default=1200, ge=0)
    """Requests of one key, or of one address without a key; `0`: no limit."""
    upload_mb_per_hour: int = Field(default=0, ge=0)
    pages_per_day: int = Field(default=0, ge=0)
    spend_per_day: float = Field(default=0, ge=0, lt=1e9)
    """The most that one key's requests may cost in a day of the server's clock; `0`: no cap."""
    head_timeout_s: float = Field(default=10, gt=0)
    """The longest time for the head of a request."""
    idle_timeout_s: float = Field(default=30, gt=0)
    """The longest silence of a sender or a reader in the middle of a body."""
    least_bytes_per_s: int = Field(default=4096, ge=1)
    """The least average speed of a body, once the idle time-out has passed."""
    body_timeout_s: float = Field(default=3600, gt=0)
    """The longest time for an upload, whatever its speed."""
    fetch: bool = False
    """Whether requests may name remote files for the API to fetch, from public addresses only."""
    fetch_private: list[IPv4Network | IPv6Network] = Field(default_factory=list)
    """Networks of private addresses from which files may be fetched too."""
    max_sync_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long a synchronous conversion by the API of docling-serve or MinerU waits before it answers 504."""
    max_connections: int = Field(default=512, ge=8)
    """Concurrent requests; further ones get 503. Connections without a request give way to new ones."""
    connections_per_address: int = Field(default=256, ge=1)
    """The same for one client, or one proxy."""
    heads_per_address: int = Field(default=32, ge=1)
    """For one client, or one proxy: connections whose head has been arriving for more than a second; beyond that, the
    oldest is closed."""
    streams: int = Field(default=100, ge=0)
    """Concurrent streams of events."""
    streams_per_key: int = Field(default=10, ge=0)
    """For one key, or one address without a key."""
    threads: int = Field(default=40, ge=4, le=256)
    """Requests processed at the same time."""
    idempotency_hours: float = Field(default=24, gt=0, le=24 * 30)
    """How long the answer to a request with an Idempotency-Key is kept."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key must be set together")
        return self

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_path(cls, value: str) -> str:
        plain = value.strip("/")
        if any(not part or not all(char.isalnum() or char in "-._~" for char in part) for part in plain.split("/")):
            if not plain:
                return ""
            raise ValueError("write it like /penstock: letters, digits, - . _ ~ and / between them")
        return f"/{plain}"
