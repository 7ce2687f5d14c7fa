"""The settings of the gateway, by the source's names: `PENSTOCK_GATEWAY__…` and the table `[gateway]`.

Source 004, "config.toml". It gives names, and defaults for `enabled` and `instance_id` alone; the others are ours.
"""

from typing import Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from pipeline.settings import Settings
from pipeline.settings.redis_url import RedisUrl

SECTION = "gateway"


class GatewayRedisSettings(BaseModel):
    """Where the gateway keeps its state. It may be a Redis of its own, and a cluster, which Celery's cannot be."""

    mode: Literal["single", "cluster"] = "single"
    url: str = Field(default="", repr=False, exclude=True)
    """For `single`. Empty: Penstock's own Redis."""
    cluster_urls: tuple[str, ...] = Field(default=(), repr=False, exclude=True)
    """For `cluster`: some of its servers; they tell the others."""
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
    """What each instance knows of nodes that are connected to others."""

    enabled: bool = True
    presence_ttl_seconds: float = Field(default=15, ge=1, le=3600)
    """A node that is not heard of for so long is taken for gone, and its jobs go to others."""
    refresh_interval_ms: int = Field(default=1000, ge=50, le=60_000)
    remove_stale_after_seconds: float = Field(default=3600, ge=1)
    """How long a node that is gone stays in lists."""


class GatewaySettings(BaseModel):
    """All of it."""

    enabled: bool = False
    """Whether `penstock up` runs a gateway. `penstock gateway` runs one in any case."""
    instance_id: str = Field(default="auto", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """`auto`: host name, process and a random part."""
    redis: GatewayRedisSettings = Field(default_factory=GatewayRedisSettings)
    owner_ttl_seconds: float = Field(default=15, ge=1, le=3600)
    """Of an instance's presence and of its bindings to nodes and sessions; renewed each third of it."""
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
    """A proxy before it speaks TLS, so that it may listen beyond this machine without."""
    max_nodes: int = Field(default=10_000, ge=1)
    max_sessions: int = Field(default=1000, ge=1)
    """Connections to one instance."""
    max_message_bytes: int = Field(default=16 * 2**20, ge=64 * 2**10)
    """Of a text frame."""
    max_attachment_bytes: int = Field(default=32 * 2**20, ge=2**10)
    """Of a message's binary frames together."""
    max_session_jobs: int = Field(default=256, ge=1)
    """Of one session at once; further requests are refused with `too_many_jobs`."""
    max_token_jobs: int = Field(default=4096, ge=1)
    """The same of all sessions of one token at this instance, with those that sessions have left behind."""
    max_outbox_bytes: int = Field(default=64 * 2**20, ge=2**20)
    """What waits for one connection that does not read; beyond, the connection is closed."""
    heartbeat_ms: int = Field(default=3000, ge=100, le=60_000)
    """How often a node says that it is there; after three times that in silence it counts as gone."""
    attempt_timeout_ms: int = Field(default=120_000, ge=100)
    """How long one node may take for a job, if the session does not say."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """How many nodes a job is given to before it fails."""
    result_ttl_ms: int = Field(default=600_000, ge=1000)
    """How long a request id is known, and its result kept."""
    cool_down_ms: int = Field(default=5000, ge=1)
    """How long a node that dropped a job, or has not the model that it offered, is left alone; doubled each time, up to
    64 times."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key are set together")
        return self

    @property
    def slot_hold_ms(self) -> int:
        """How long a slot is held for an attempt: longer than that, since its node may still be at work."""
        return self.attempt_timeout_ms + 10_000


def gateway_settings(settings: Settings) -> GatewaySettings:
    """The gateway's settings. Raises what reading settings raises."""
    return settings.section(SECTION, GatewaySettings)
