"""All settings, and the only reader of the environment.

Every field can be set by an environment variable with the prefix ``PENSTOCK_`` (nested fields joined by ``__``, as in
``PENSTOCK_PROVIDERS__OPENAI__API_KEY``) or in the TOML file that ``PENSTOCK_CONFIG`` names (default: ``penstock.toml``
in the data folder). The environment wins.
"""

import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

MAX_SOCKET_PATH = 100
"""Bytes; the system's limit for a unix socket is about 104."""
LOCAL = "local"
"""The provider that needs no service: text layer, layout and OCR on this machine."""


class ConfigFileError(ValueError):
    """The TOML file with settings cannot be read. The message says where it is and what is wrong with it."""


class Price(BaseModel):
    """What a model costs, in the currency of the cap, for a million tokens."""

    input: float = Field(default=0, ge=0)
    output: float = Field(default=0, ge=0)

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """The cost of one call."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class ProviderProfile(BaseModel):
    """One named AI service that speaks the OpenAI API."""

    kind: Literal["openai_compatible"] = "openai_compatible"
    base_url: str = "https://api.openai.com/v1"
    api_key: SecretStr = SecretStr("")
    model: str = ""
    timeout_s: float = Field(default=120, gt=0, le=3600)
    """Hard limit of one call, from connect to the last byte. Source 001, section 9: pageTimeout, 2 min."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """Calls of one document that may be under way at once."""
    max_tokens: int = Field(default=8192, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    fallback: str = ""
    """Another provider (or `local`) that does this one's work while its breaker is open."""
    limits: str = ""
    """What the service allows, like `10/s, 500/min, 100000 tokens/min`; can be changed live. Empty: no limit."""
    estimated_tokens: int = Field(default=0, ge=0)
    """Tokens that a call is taken to use until it says what it did; needed for limits in tokens."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """By model; `*` for all others."""
    daily_spend_cap: float = Field(default=0, ge=0)
    """Spent in a day (which begins at `quota_reset`), the provider's queues close until the next; 0: no cap."""
    quota_reset: str = "16:30"
    """Time of day at which a daily quota begins anew, in `quota_zone`. Source 002, section 2.B."""
    quota_zone: str = "UTC+8"
    breaker_fail_max: int = Field(default=5, ge=1)
    """Transient failures in a row that open the breaker."""
    breaker_cool_down_s: float = Field(default=15.0, gt=0)
    """The first pause after them; each further one is twice as long, up to `breaker_longest_s`."""
    breaker_longest_s: float = Field(default=900.0, gt=0)
    image_dpi: int = Field(default=150, ge=36, le=600)

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """What a call cost, by the price list; 0 for a model without a price."""
        price = self.prices.get(model) or self.prices.get("*")
        return price.of(input_tokens, output_tokens) if price else 0.0

    @field_validator("base_url")
    @classmethod
    def _http_only(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http:// or https:// URL")
        return value.rstrip("/")


class DocumentSettings(BaseModel):
    """Limits and timings of the documents flow. Source 001, section 9 gives the names in brackets."""

    converter_count: int = Field(default_factory=lambda: max(2, os.cpu_count() or 2), ge=1, le=256)
    """Processes that convert pages on this machine, and lanes of a locally converted document [converterCount: 3;
    here one for each core, since a local page is pure computation]."""
    lease_s: float = Field(default=300, gt=0)
    """How long a claim holds without its worker being missed [taskTimeout: 5 min]."""
    page_timeout_s: float = Field(default=120, gt=0)
    """How long one page may take [pageTimeout: 2 min]."""
    quantum_s: float = Field(default=1.0, ge=0, le=60)
    """How long a lane goes on with one document before others have their turn."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0], max_length=20)
    """Waits before the second, third … attempt after a transient error; jitter of up to a fifth is added. A page has
    one attempt more than there are waits, then it fails for good."""
    max_upload_mb: int = Field(default=500, ge=1)
    max_pages: int = Field(default=20_000, ge=1)
    max_pixels: int = Field(default=25_000_000, ge=10_000)
    """Pixels of one page image; larger pages are rendered at a lower resolution."""
    max_page_points: float = Field(default=14_400, gt=0)
    """Longest side of a page in points (1/72 inch); PDF's own limit. Longer ones are refused."""
    ocr_dpi: int = Field(default=200, ge=72, le=300)
    """Resolution at which pages are rendered for text recognition. A4 is looked at with 3 million pixels (175 dpi) up
    to 200, with more above."""
    ocr_pictures: bool = True
    """Whether text is recognised in pictures on pages that have a text layer too."""
    keep_headers: bool = False
    """Whether local conversion keeps headers, footers, page numbers and watermarks, which it takes away otherwise."""
    stale_temp_s: float = Field(default=24 * 3600, gt=0)
    """Age at which a temp folder without a running document is removed (source 001, section 7.1)."""
    cache: bool = True
    """Take over what an identical page, model, prompt and settings gave before, without a call."""


class MusicSettings(BaseModel):
    """Where songs come from, and who analyses them. Source 002."""

    server_url: str = ""
    """A Subsonic or OpenSubsonic server, such as Navidrome: `https://music.example.org`."""
    user: str = ""
    password: SecretStr = SecretStr("")
    folder: Path | None = None
    """A folder of audio files whose tags are read, for people without a server."""
    provider: str = ""
    """The provider that writes the metadata. Empty: songs can be synced, but not analysed."""
    model: str = ""
    embeddings_provider: str = ""
    """The provider that makes vectors. Empty: lexical ones, made here, which know words but no meaning."""
    embeddings_model: str = ""
    page_size: int = Field(default=500, ge=1, le=500)
    """Songs asked for at once from the server; 500 is what servers allow."""
    timeout_s: float = Field(default=30, gt=0, le=600)
    """Hard limit of one call to the music server."""
    lease_s: float = Field(default=300, gt=0)
    """How long a batch is held at least; longer where the provider's own limit is."""
    backoff_s: list[float] = Field(default=[5.0, 10.0], max_length=20)
    """Waits before the second and third attempt of a batch's step: exponential from 5 s. Source 002, section 2.D."""

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


class ScreenshotSettings(BaseModel):
    """Sizes and timings of the screenshots flow. Source 000, section 8 gives the names in brackets."""

    batch_size: int = Field(default=5, ge=1, le=100)
    """Frames of one source that make a batch [batchSize]."""
    batch_timeout_s: float = Field(default=30, gt=0)
    """A smaller batch is made this long after its first frame [batchTimeoutMs]."""
    shard_size: int = Field(default=5, ge=1, le=50)
    """Frames in one call [vlmShardSize]."""
    duplicate_bits: int = Field(default=8, ge=0, le=256)
    """A frame is a duplicate if at most this many of the 256 bits of its hash differ from a late one's."""
    duplicate_frames: int = Field(default=3, ge=1, le=100)
    """Late frames of its source that a frame is compared with."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0, 300.0, 600.0], max_length=20)
    """Waits between attempts [backoffSchedule]; there is one attempt more than there are waits."""
    lease_s: float = Field(default=300, gt=0)
    """How long a claim holds without its worker being missed [staleRunningThresholdMs]."""
    recovery_age_s: float = Field(default=300, ge=0)
    """A batch that waited longer goes into the recovery lane [laneRecoveryAgeMs]."""
    retention_days: float = Field(default=7, ge=0)
    """Days that original frames are kept after their analysis; 0: they are deleted at once."""
    max_image_mb: int = Field(default=50, ge=1)


class Settings(BaseSettings):
    """Everything that can be set. See `penstock doctor` for what is in force."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_", env_nested_delimiter="__", extra="ignore", nested_model_default_partial_update=True
    )

    data_dir: Path = Field(default_factory=lambda: user_data_path("penstock"))
    # Both may hold a password: they are in no dump.
    database_url: str = Field(default="", repr=False, exclude=True)
    """SQLAlchemy URL. Empty: an SQLite file in the data folder."""
    redis_url: str = Field(default="", repr=False, exclude=True)
    """Empty: a private redis-server on a unix socket in the data folder."""
    provider: str = LOCAL
    """The provider that converts pages where none is named."""
    providers: dict[str, ProviderProfile] = Field(default_factory=dict)
    documents: DocumentSettings = Field(default_factory=DocumentSettings)
    music: MusicSettings = Field(default_factory=MusicSettings)
    screenshots: ScreenshotSettings = Field(default_factory=ScreenshotSettings)
    sweep_interval_s: float = Field(default=5, gt=0)
    """[healthCheckInterval: 1 min; here 5 s, so that a killed worker's pages move again within 30 s]."""
    presence_interval_s: float = Field(default=3, gt=0)
    presence_ttl_s: float = Field(default=15, gt=0)
    ai_concurrency: int = Field(default=32, ge=1, le=1024)
    """Threads of the worker that calls AI services."""
    stack_linger_s: float = Field(default=3, ge=0)
    """How long an embedded stack that a command started stays up for the next command."""
    log_level: str = "INFO"
    log_json: bool = False

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, value: str) -> str:
        if value and urlsplit(value).scheme not in {"redis", "rediss", "unix"}:
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return value

    @model_validator(mode="after")
    def _music_providers_are_known(self) -> Self:
        for name in (self.music.provider, self.music.embeddings_provider):
            if name and name not in self.providers:
                raise ValueError(f"music: there is no provider '{name}' under `providers`")
        return self

    @model_validator(mode="after")
    def _fallbacks_are_known(self) -> Self:
        for name, profile in self.providers.items():
            if profile.fallback not in {"", LOCAL, *self.providers}:
                raise ValueError(f"providers: '{name}' falls back to '{profile.fallback}', which is none of them")
        return self

    @property
    def embedded_database(self) -> bool:
        return not self.database_url

    @property
    def embedded_redis(self) -> bool:
        return not self.redis_url

    @property
    def effective_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'penstock.db'}"

    @property
    def redis_socket(self) -> Path:
        """Where the embedded Redis listens: in the data folder, or in a private folder if no URL can hold that path."""
        path = self.data_dir / "redis.sock"
        if len(str(path).encode()) <= MAX_SOCKET_PATH and not set("%?#") & set(str(path)):
            return path
        digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{digest}" / "redis.sock"

    @property
    def effective_redis_url(self) -> str:
        return self.redis_url or f"unix://{self.redis_socket}?db=0"

    @property
    def broker_url(self) -> str:
        """What Celery uses as broker and as result backend."""
        url = self.effective_redis_url
        if not url.startswith("unix://"):
            return url
        # Celery's words for what redis-py calls `unix://…?db=`.
        return "redis+socket" + url.removeprefix("unix").replace("?db=", "?virtual_host=")

    @property
    def upload_dir(self) -> Path:
        return self.data_dir / "uploads"

    @property
    def screenshot_dir(self) -> Path:
        return self.data_dir / "screenshots"

    @property
    def temp_dir(self) -> Path:
        return self.data_dir / "temp"

    @property
    def output_dir(self) -> Path:
        return self.data_dir / "output"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the signature is given
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        try:
            file_settings = TomlConfigSettingsSource(settings_cls, toml_file=config_path())
        except (OSError, ValueError) as error:  # no permission, not UTF-8, not TOML
            raise ConfigFileError(f"{config_path()} cannot be read: {error}") from error
        return init_settings, env_settings, file_settings


def config_path() -> Path:
    """The TOML file that settings are read from; it need not exist."""
    named = os.environ.get("PENSTOCK_CONFIG")
    data_dir = os.environ.get("PENSTOCK_DATA_DIR")
    return Path(named) if named else (Path(data_dir) if data_dir else user_data_path("penstock")) / "penstock.toml"


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process, read once. Tests call `get_settings.cache_clear()`."""
    return Settings()
