"""The settings of the gateway: `PENSTOCK_GATEWAY__…` and the table `[gateway]`.

Settings of the design keep its names: docs/sources/nodes.md#settings. It gives defaults for `enabled` and
`instance_id` alone.
"""

from typing import Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from pipeline.settings import Settings
from pipeline.settings.redis_url import RedisUrl

SECTION = "gateway"


class GatewayRedisSettings(BaseModel):
    """The Redis for the gateway's state. Unlike Celery's broker, it may be a cluster."""

    mode: Literal["single", "cluster"] = "single"
    """`single` or `cluster`."""
    url: str = Field(default="", repr=False, exclude=True)
    """For `single`: a Redis of the gateway's own. Empty: `PENSTOCK_REDIS_URL`."""
    cluster_urls: tuple[str, ...] = Field(default=(), repr=False, exclude=True)
    """For `cluster`: some of its servers, such as `["redis://a:6379", "redis://b:6379"]`. They name the others."""
    key_prefix: str = Field(default="penstock:gateway", pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """The prefix of all keys."""

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
    """Whether instances tell each other about their nodes."""
    presence_ttl_seconds: float = Field(default=15, ge=1, le=3600)
    """A node that reports nothing for this long counts as gone, and the gateway gives its jobs to other nodes."""
    refresh_interval_ms: int = Field(default=1000, ge=50, le=60_000)
    """How often an instance publishes its nodes and reads the nodes of the others."""
    remove_stale_after_seconds: float = Field(default=3600, ge=1)
    """How long a node that counts as gone stays in lists."""


class GatewaySettings(BaseModel):
    """The table `[gateway]`."""

    enabled: bool = False
    """Whether `penstock up` runs a gateway. `penstock gateway` runs one in any case."""
    instance_id: str = Field(default="auto", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The name of this instance. `auto`: host name, process and a random part. Give each instance its own name."""
    redis: GatewayRedisSettings = Field(default_factory=GatewayRedisSettings)
    owner_ttl_seconds: float = Field(default=15, ge=1, le=3600)
    """How long after its last sign of life an instance counts as dead. It renews its presence, and its bindings to
    nodes and sessions, three times in that time."""
    stream_group: str = Field(default="gateway", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """The consumer group of the inboxes."""
    stream_block_ms: int = Field(default=1000, ge=10, le=60_000)
    """How long one read of an inbox waits for messages."""
    stream_count: int = Field(default=64, ge=1, le=10_000)
    """Messages that one read takes at most."""
    stream_maxlen: int = Field(default=10_000, ge=100)
    """About how many messages an inbox holds; beyond it, the oldest go."""
    dlq_enabled: bool = True
    """Whether the gateway stores messages that keep failing as dead letters."""
    dlq_maxlen: int = Field(default=10_000, ge=1)
    """About how many dead letters an instance keeps."""
    dlq_max_deliveries: int = Field(default=5, ge=1)
    """How many deliveries a message has before it becomes a dead letter."""
    dlq_min_idle_ms: int = Field(default=30_000, ge=1)
    """How long such a message must be idle before it becomes a dead letter."""
    dlq_scan_interval_ms: int = Field(default=10_000, ge=100)
    """How often beat and one instance look for such messages, stale nodes, and orphaned jobs and slots."""
    dlq_scan_count: int = Field(default=100, ge=1)
    """Messages of an inbox to read each time."""
    node_snapshot: NodeSnapshotSettings = Field(default_factory=NodeSnapshotSettings)

    host: str = "127.0.0.1"
    """The address to listen on. Beyond this machine, the gateway does not start before there is a token (`penstock
    nodes tokens create`)."""
    port: int = Field(default=8485, ge=0, le=65_535)
    """The gateway's port."""
    tls_certificate: str = ""
    """PEM file with the certificate and its chain: the gateway then speaks `wss://`. Empty: `ws://`, for this machine
    or behind a proxy."""
    tls_key: str = ""
    """PEM file with the certificate's key."""
    tls_by_proxy: bool = False
    """A proxy before the gateway speaks TLS, so the gateway itself may listen beyond this machine without TLS. No
    request may bypass that proxy."""
    max_nodes: int = Field(default=10_000, ge=1)
    """Most nodes connected to one instance."""
    max_sessions: int = Field(default=1000, ge=1)
    """Most sessions connected to one instance."""
    max_message_bytes: int = Field(default=16 * 2**20, ge=64 * 2**10)
    """The longest message without its attachments."""
    max_attachment_bytes: int = Field(default=32 * 2**20, ge=2**10)
    """All attachments of a message together, such as pictures."""
    max_session_jobs: int = Field(default=256, ge=1)
    """Most jobs of one session at once; the gateway refuses further requests with `too_many_jobs`."""
    max_token_jobs: int = Field(default=4096, ge=1)
    """The same for all sessions of one token at one instance, including jobs of sessions that have ended."""
    max_outbox_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """Most bytes that wait for a slow connection; beyond it, the gateway closes the connection."""
    heartbeat_ms: int = Field(default=3000, ge=100, le=60_000)
    """How often a node sends a heartbeat. After three silent intervals it counts as gone."""
    attempt_timeout_ms: int = Field(default=120_000, ge=100)
    """How long one node may take for a job, unless the session sets another time."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """How many attempts a job has before it fails."""
    result_ttl_ms: int = Field(default=600_000, ge=1000)
    """How long the gateway keeps a request id and its result."""
    cool_down_ms: int = Field(default=5000, ge=1)
    """How long a node that dropped a job, or lacks an offered model, gets no jobs; doubled each time, up to 64 times
    this."""

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
    """Return the gateway's settings. Raises `UnreadableSettingsError`, or `ValidationError` for an invalid value."""
    return settings.section(SECTION, GatewaySettings)
