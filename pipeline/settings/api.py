"""Limits and address of the REST API."""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, Field, field_validator, model_validator

HostName = Annotated[str, Field(min_length=1, max_length=253)]


class ApiSettings(BaseModel):
    """`penstock api`, and the API that is part of `penstock up`."""

    LIVE: ClassVar[Mapping[str, str]] = {
        "requests_per_min": "requests of one key, or of one address without a key, in a minute; 0: no limit",
        "upload_mb_per_hour": "megabytes that one key may upload in an hour; 0: no limit",
        "pages_per_day": "pages that one key may have converted in a day, retries included; 0: no limit",
        "spend_per_day": "what one key's requests may cost in a day of the server's clock; 0: no cap",
        "streams_per_key": "streams of events of one key that are open at once",
    }
    """What can be changed while it runs, and what it means."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    """The address to listen on. Beyond this machine, callers need a key."""
    port: int = Field(default=8484, ge=1, le=65_535)
    with_stack: bool = True
    """Whether `penstock up` runs the API too."""
    tls_certificate: str = ""
    """A PEM file with the certificate and its chain. Empty: plain HTTP, for this machine or behind a proxy."""
    tls_key: str = ""
    tls_by_proxy: bool = False
    """A proxy before it speaks TLS, so that it may listen beyond this machine without."""
    prefix: str = ""
    """Where a reverse proxy puts it, such as `/penstock`; requests may come with the prefix or without."""
    require_key: bool = False
    """Whether callers on this machine need a key as well."""
    read_only: bool = False
    """Refuse whatever would change something."""
    mcp_write: bool = False
    """Whether assistants without a key may use those tools of `/mcp` that change something."""
    allowed_hosts: list[HostName] = Field(default_factory=list)
    """Names under which the API may be called, besides this machine's own; `*` for any."""
    allowed_origins: list[HostName] = Field(default_factory=list)
    """Web pages of other hosts that may change something, such as `https://desk.example.org`."""
    max_upload_mb: int = Field(default=500, ge=1)
    max_json_mb: int = Field(default=4, ge=1, le=64)
    """The largest body that is not an upload. It is held in memory."""
    requests_per_min: int = Field(default=1200, ge=0)
    """What one key, or one address without a key, may ask for; `0`: no limit."""
    upload_mb_per_hour: int = Field(default=0, ge=0)
    pages_per_day: int = Field(default=0, ge=0)
    spend_per_day: float = Field(default=0, ge=0, lt=1e9)
    """What the calls for one key's requests may cost in a day of the server's clock; `0`: no cap."""
    head_timeout_s: float = Field(default=10, gt=0)
    """How long the head of a request may take."""
    idle_timeout_s: float = Field(default=30, gt=0)
    """How long a sender, or a reader, may be silent in the middle of a body."""
    least_bytes_per_s: int = Field(default=4096, ge=1)
    """How fast a body must come on average, once the idle time-out is over."""
    body_timeout_s: float = Field(default=3600, gt=0)
    """How long an upload may take, however fast it comes."""
    fetch: bool = False
    """Whether requests may name files elsewhere, which are then fetched; from public addresses only."""
    fetch_private: list[IPv4Network | IPv6Network] = Field(default_factory=list)
    """Networks of private addresses that files may be fetched from as well."""
    max_sync_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long a synchronous conversion by the API of docling-serve or MinerU waits before it is answered with 504."""
    max_connections: int = Field(default=512, ge=8)
    """Requests under way; further ones are answered with 503. Connections without one give way to new ones."""
    connections_per_address: int = Field(default=256, ge=1)
    """The same of one client, or of a proxy."""
    heads_per_address: int = Field(default=32, ge=1)
    """Of one client, or of a proxy: connections whose head is on its way for more than a second; beyond, the oldest is
    closed."""
    streams: int = Field(default=100, ge=0)
    """Streams of events that are open at the same time."""
    streams_per_key: int = Field(default=10, ge=0)
    """Of one key, or of one address without a key."""
    threads: int = Field(default=40, ge=4, le=256)
    """Requests that are worked on at the same time."""
    idempotency_hours: float = Field(default=24, gt=0, le=24 * 30)
    """How long the answer to a request with an Idempotency-Key is kept."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key are set together")
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
