"""The settings of the gateway: `PENSTOCK_GATEWAY__…` and the table `[gateway]`.

The names are those of docs/sources/nodes.md#settings, which gives defaults for `enabled` and `instance_id` alone.
"""

from typing import Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from pipeline.settings import Settings
from pipeline.settings.redis_url import RedisUrl

SECTION = "gateway"


class GatewayRedisSettings(BaseModel):
    """The Redis for the gateway's state. Unlike Celery's broker, it may be a cluster."""

    mode: Literal["single", "cluster"] = "single"
    url: str = Field(default="", repr=False, exclude=True)
    """For `single`. Empty: Penstock's own Redis."""
    cluster_urls: tuple[str, ...] = Field(default=(), repr=False, exclude=True)
    """For `cluster`: some of its servers, from which the client discovers the rest."""
    key_prefix: str = Field(default="penstock:gateway", pattern=r"^[A-Za-z0-9_.:-]{1,64}$")

    @field_validator("url")
    @classmethod
    def _can_be_read(cls, value: str) -> str:
        if value:
            RedisUrl.parse(value)
        return value

    @model_validator(mode="after")
    def _a_cluster_has_addresses(self) -> Self:
        for url in self.cluster_urls:
            RedisUrl.parse(url)
        if self.mode == "cluster" and not self.cluster_urls:
            raise ValueError("mode 'cluster' needs cluster_urls")
        return self


class NodeSnapshotSettings(BaseModel):
    """What each instance knows of nodes that are connected to other instances."""

    enabled: bool = True
    presence_ttl_seconds: float = Field(default=15, ge=1, le=3600)
    """A node without a sign of life for this long counts as gone, and its jobs go to other nodes."""
    refresh_interval_ms: int = Field(default=1000, ge=50, le=60_000)
    remove_stale_after_seconds: float = Field(default=3600, ge=1)
    """How long lists show a node after it has gone."""


class GatewaySettings(BaseModel):
    """The table `[gateway]`."""

    enabled: bool = False
    """Whether `penstock up` runs a gateway. `penstock gateway` runs one in any case."""
    instance_id: str = Field(default="auto", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """`auto`: host name, process and a random part."""
    redis: GatewayRedisSettings = Field(default_factory=GatewayRedisSettings)
    owner_ttl_seconds: float = Field(default=15, ge=1, le=3600)
    """How long an instance's presence and ownerships last. The instance renews them at a third of this time."""
    stream_group: str = Field(default="gateway", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    stream_block_ms: int = Field(default=1000, ge=10, le=60_000)
    stream_count: int = Field(default=64, ge=1, le=10_000)
    stream_maxlen: int = Field(default=10_000, ge=100)
    dlq_enabled: bool = True
    dlq_maxlen: int = Field(default=10_000, ge=1)
    dlq_max_deliveries: int = Field(default=5, ge=1)
    dlq_min_idle_ms: int = Field(default=30_000, ge=1)
    dlq_scan_interval_ms: int = Field(default=10_000, ge=100)
    dlq_scan_count: int = Field(default=100, ge=1)
    node_snapshot: NodeSnapshotSettings = Field(default_factory=NodeSnapshotSettings)

    host: str = "127.0.0.1"
    port: int = Field(default=8485, ge=0, le=65_535)
    tls_certificate: str = ""
    """A PEM file with the certificate and its chain. Empty: plain `ws://`, for this machine or behind a proxy."""
    tls_key: str = ""
    tls_by_proxy: bool = False
    """A proxy in front of the gateway speaks TLS, so the gateway may listen beyond this machine without it."""
    max_nodes: int = Field(default=10_000, ge=1)
    max_sessions: int = Field(default=1000, ge=1)
    """Connections to one instance, like `max_nodes`."""
    max_message_bytes: int = Field(default=16 * 2**20, ge=64 * 2**10)
    """The size limit of a text frame."""
    max_attachment_bytes: int = Field(default=32 * 2**20, ge=2**10)
    """The size limit of all binary frames of one message together."""
    max_session_jobs: int = Field(default=256, ge=1)
    """Unfinished jobs of one session. The gateway refuses further requests with `too_many_jobs`."""
    max_token_jobs: int = Field(default=4096, ge=1)
    """The same limit for one token at one instance, over its sessions, closed ones included."""
    max_outbox_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """Bytes that may wait for a connection that reads slowly. Beyond them the gateway closes the connection."""
    heartbeat_ms: int = Field(default=3000, ge=100, le=60_000)
    """How often a node sends a heartbeat. After three intervals of silence it counts as gone."""
    attempt_timeout_ms: int = Field(default=120_000, ge=100)
    """How long one node may take for a job, unless the request sets its own limit."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """How many attempts a job gets before it fails."""
    result_ttl_ms: int = Field(default=600_000, ge=1000)
    """How long the gateway remembers a request id and keeps its result."""
    cool_down_ms: int = Field(default=5000, ge=1)
    """How long a node gets no jobs after it dropped one, or none for a model that it lacks. Doubles, up to 64 times."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key are set together")
        return self

    @property
    def slot_hold_ms(self) -> int:
        """How long an attempt holds a slot: longer than the attempt's limit, as the node may still be at work."""
        return self.attempt_timeout_ms + 10_000


def gateway_settings(settings: Settings) -> GatewaySettings:
    """Read the gateway's settings. Raises the errors of `Settings.section`."""
    return settings.section(SECTION, GatewaySettings)
