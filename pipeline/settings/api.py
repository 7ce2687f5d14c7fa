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
    """The address to listen on. Callers from other machines need a key (`penstock keys create`), and beyond loopback
    the API does not start without a key."""
    port: int = Field(default=8484, ge=1, le=65_535)
    """The API's port."""
    with_stack: bool = True
    """Whether `penstock up` runs the API too."""
    tls_certificate: str = ""
    """PEM file with the certificate and its chain: the API then speaks `https://`. Empty: plain HTTP, for this machine
    or behind a proxy."""
    tls_key: str = ""
    """PEM file with the certificate's key."""
    tls_by_proxy: bool = False
    """A proxy before the API speaks TLS, so the API itself may listen beyond this machine without TLS. No request may
    bypass that proxy."""
    prefix: str = ""
    """The path at which a reverse proxy serves the API, such as `/penstock`. Requests may have the prefix or not."""
    docs_url: str = ""
    """Where you serve the documentation that `make docs` builds. The OpenAPI description and the console's reference of
    the API link to it."""
    require_key: bool = False
    """Whether callers on this machine need a key as well."""
    read_only: bool = False
    """Refuse every request that changes anything."""
    mcp_write: bool = False
    """Whether assistants without a key may use the tools of `/mcp` that change anything: docs/how-to/mcp.md."""
    allowed_hosts: list[HostName] = Field(default_factory=list)
    """Further host names of the API, besides this machine's own; `["*"]` for any."""
    allowed_origins: list[HostName] = Field(default_factory=list)
    """Origins of other hosts whose pages may send requests that change anything: `["https://desk.example.org"]`."""
    max_upload_mb: int = Field(default=500, ge=1)
    """The largest upload. A document must be within `PENSTOCK_DOCUMENTS__MAX_UPLOAD_MB` as well."""
    max_json_mb: int = Field(default=4, ge=1, le=64)
    """The largest body other than uploads. The API holds it in memory."""
    requests_per_min: int = Field(default=1200, ge=0)
    """Requests a minute of one key, or of one address without a key. `0` turns off the limit, here and in the next
    three. To change these four and `STREAMS_PER_KEY` live: `penstock settings set api.requests_per_min 600`."""
    upload_mb_per_hour: int = Field(default=0, ge=0)
    """Megabytes that one key may upload in an hour."""
    pages_per_day: int = Field(default=0, ge=0)
    """Pages that one key may submit for conversion in a day, retries included."""
    spend_per_day: float = Field(default=0, ge=0, lt=1e9)
    """Highest cost of the calls for one key's requests in a day of the server's clock, by the providers' price lists;
    see docs/how-to/api.md#limits."""
    head_timeout_s: float = Field(default=10, gt=0)
    """How long the head of a request may take."""
    idle_timeout_s: float = Field(default=30, gt=0)
    """How long a sender or a reader may be silent in the middle of a body."""
    least_bytes_per_s: int = Field(default=4096, ge=1)
    """The lowest average speed of a body, once the idle time-out is over."""
    body_timeout_s: float = Field(default=3600, gt=0)
    """How long an upload may take at any speed; other bodies have a minute."""
    fetch: bool = False
    """Whether requests of docling-serve's clients and of assistants may name files elsewhere, for the API to fetch;
    from public addresses only."""
    fetch_private: list[IPv4Network | IPv6Network] = Field(default_factory=list)
    """Networks of private addresses from which the API may also fetch files, such as `["10.1.0.0/16"]`."""
    max_sync_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long a synchronous conversion by the API of docling-serve or MinerU waits before the API answers with 504."""
    max_connections: int = Field(default=512, ge=8)
    """Most requests under way; further requests get 503, except health checks such as `/healthz`. It is also the
    highest number of connections: beyond it, a new connection closes the one that waited longest without a request."""
    connections_per_address: int = Field(default=256, ge=1)
    """The same for one client, or for one proxy."""
    heads_per_address: int = Field(default=32, ge=1)
    """Connections of one client, or of one proxy, whose head takes more than a second; beyond that number, the API
    closes the oldest."""
    streams: int = Field(default=100, ge=0)
    """Most open streams of events."""
    streams_per_key: int = Field(default=10, ge=0)
    """Most open streams of one key, or of one address without a key."""
    threads: int = Field(default=40, ge=4, le=256)
    """Requests that the API processes at the same time."""
    idempotency_hours: float = Field(default=24, gt=0, le=24 * 30)
    """How long the API keeps the answer to a request with an `Idempotency-Key`."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key must be set together")
        return self

    @field_validator("docs_url")
    @classmethod
    def _docs_url_is_http(cls, value: str) -> str:
        if value and not value.startswith(("https://", "http://")):
            raise ValueError("write it like https://docs.example.org/penstock/")
        return value

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_path(cls, value: str) -> str:
        plain = value.strip("/")
        if any(not part or not all(char.isalnum() or char in "-._~" for char in part) for part in plain.split("/")):
            if not plain:
                return ""
            raise ValueError("write it like /penstock: letters, digits, - . _ ~ and / between them")
        return f"/{plain}"
