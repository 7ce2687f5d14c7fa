"""All settings, and the only reader of the environment.

Every field can be set by an environment variable with the prefix ``PENSTOCK_`` (nested fields joined by ``__``, as in
``PENSTOCK_PROVIDERS__OPENAI__API_KEY``) or in the TOML file that ``PENSTOCK_CONFIG`` names (default: ``penstock.toml``
in the data folder). The environment takes precedence.

The settings of documents, music and screenshots are modules here, one per flow, and fields of `Settings`: this is the
bottom layer, which imports no flow, and `settings.documents.lease_s` keeps a checked type. A further flow keeps its
settings in its own package, is listed in `SECTIONS`, and reads them with `Settings.section`.
"""

import hashlib
import logging
import os
import tempfile
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from platformdirs import user_data_path
from pydantic import BaseModel, Field, PrivateAttr, create_model, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from pipeline.settings.api import ApiSettings
from pipeline.settings.documents import DocumentSettings
from pipeline.settings.environment import Environment, UnreadableSettingsError
from pipeline.settings.music import MusicSettings
from pipeline.settings.names import Speller
from pipeline.settings.providers import LOCAL, Price, ProviderProfile
from pipeline.settings.reading import ReadingSettings
from pipeline.settings.redis_url import RedisUrl
from pipeline.settings.retention import RetentionSettings
from pipeline.settings.screenshots import ScreenshotSettings

__all__ = [
    "LOCAL",
    "ApiSettings",
    "ConfigFileError",
    "DocumentSettings",
    "MusicSettings",
    "Price",
    "ProviderProfile",
    "ReadingSettings",
    "RetentionSettings",
    "ScreenshotSettings",
    "Settings",
    "UnreadableSettingsError",
    "config_path",
    "get_settings",
]

Section = TypeVar("Section", bound=BaseModel)
CONFIG = "PENSTOCK_CONFIG"
SECTIONS = ("gateway", "knowledge", "webhooks")
"""Settings that are not fields here: their packages read them, with `Settings.section`."""
_PRIVATE_NAMES = (
    "knowledge",
    "redis",
    "penstock.db",
    "penstock.db-wal",
    "penstock.db-shm",
    "penstock.log",
    "penstock.toml",
    "installation",
    "readers.sock",
    "stack.json",
    "api.json",
    "gateway.json",
    "restart",
)
_MAX_PATH = 4000
MAX_SOCKET_PATH = 100
"""In bytes; the system's limit for a unix socket is about 104."""


class ConfigFileError(UnreadableSettingsError):
    """The TOML file with settings cannot be read. The message names the file and the problem."""


class _Sources(BaseSettings):
    """The sources of settings: arguments first, then the environment, then the TOML file."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_",
        env_nested_delimiter="__",
        extra="ignore",
        nested_model_default_partial_update=True,
        hide_input_in_errors=True,  # URLs hold passwords
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the signature is given
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = config_path()
        if os.environ.get(CONFIG) and not path.is_file():
            raise ConfigFileError(f"{CONFIG} names {path}, which does not exist")
        try:
            file_settings = TomlConfigSettingsSource(settings_cls, toml_file=path)
        except (OSError, ValueError) as error:  # no permission, not UTF-8, not TOML
            raise ConfigFileError(f"{path} cannot be read: {error}") from error
        if wrong := cls._misspelt(file_settings.toml_data, path):
            raise UnreadableSettingsError("; ".join(wrong))
        return init_settings, Environment(settings_cls), file_settings

    @classmethod
    def _misspelt(cls, table: Mapping[str, Any], path: Path) -> list[str]:
        """Return the problems of names in this model's section that are not settings."""
        speller, (name, *_) = Speller(cls), cls.model_fields
        return [*speller.in_environment(os.environ, name), *speller.in_file(table, str(path), name)]


class Settings(_Sources):
    """All settings. `penstock doctor` shows the values in force."""

    data_dir: Path = Field(default_factory=lambda: user_data_path("penstock"))
    """The folder of stored files and, without the two URLs below, of the embedded database and Redis. Workers on
    several hosts must share it. A data folder belongs to one database: see
    docs/how-to/operations.md#which-database-which-data-folder."""
    # Both may contain a password, so they are in no dump.
    database_url: str = Field(default="", repr=False, exclude=True)
    """SQLAlchemy URL, such as `postgresql://user:password@host/penstock`. Empty: an SQLite file in the data folder."""
    redis_url: str = Field(default="", repr=False, exclude=True)
    """`redis://`, `rediss://`, `unix://` or `sentinel://`, such as `redis://:password@host:6379/0`: see
    docs/reference/settings.md#redis. Also Celery's broker and result backend. Empty: a private redis-server on a unix
    socket; only the embedded stack starts it."""
    provider: str = LOCAL
    """The default provider for pages. `local` is this machine: text layer and text recognition."""
    keyless: bool = False
    """This process calls no provider and has no keys, like `worker-cpu` of the Compose file: a missing key is not an
    error here."""
    providers: dict[str, ProviderProfile] = Field(default_factory=dict)
    """The named services, as JSON. Usually you set single fields, as below; `<NAME>` is a name of your choice, used in
    lower case everywhere else."""
    reading: ReadingSettings = Field(default_factory=ReadingSettings)
    documents: DocumentSettings = Field(default_factory=DocumentSettings)
    music: MusicSettings = Field(default_factory=MusicSettings)
    screenshots: ScreenshotSettings = Field(default_factory=ScreenshotSettings)
    api: ApiSettings = Field(default_factory=ApiSettings)
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    sweep_interval_s: float = Field(default=5, gt=0)
    """Seconds between two sweeps, which give back the units of dead workers and send missing messages."""
    watchdog_interval_s: float = Field(default=15, gt=0)
    """Seconds between two checks of the calls on record by the watchdog: see
    docs/explanation/limits.md#who-does-what."""
    presence_interval_s: float = Field(default=3, gt=0)
    """Seconds between two signs of life of a worker."""
    presence_ttl_s: float = Field(default=15, gt=0)
    """Seconds after its last sign of life at which a worker counts as absent. Two sweeps in a row must find it
    absent."""
    ai_concurrency: int = Field(default=32, ge=1, le=1024)
    """Threads of the worker that calls AI services (if you start that worker yourself: `-c`), and size of each
    process's pool of database connections."""
    stack_linger_s: float = Field(default=3, ge=0)
    """How many seconds an embedded stack that a command started waits for the next command."""
    worker_events: bool = False
    """Workers send heartbeats and an event for each step of each task, for monitors such as Flower. Docker Compose sets
    it."""
    log_level: str = "INFO"
    """The log level of workers, beat and `penstock up`."""
    log_json: bool = False
    """Log one JSON object a line instead of text."""
    _sections: dict[str, BaseModel] = PrivateAttr(default_factory=dict)

    @classmethod
    def _misspelt(cls, table: Mapping[str, Any], path: Path) -> list[str]:
        speller = Speller(cls, SECTIONS)
        return [*speller.in_environment(os.environ), *speller.in_file(table, str(path))]

    def section(self, name: str, kind: type[Section]) -> Section:
        """Return the settings of a flow that is not a field here: `PENSTOCK_<NAME>__…` and the table `[name]`.

        Reads them on the first call, then keeps them. Raises `UnreadableSettingsError` or `ValidationError`.
        """
        if name not in self._sections:
            fields: dict[str, Any] = {name: (kind, Field(default_factory=kind))}
            section: BaseModel = getattr(create_model("Section", __base__=_Sources, **fields)(), name)
            if problem := _unknown_provider(name, section, self.providers):
                raise UnreadableSettingsError(problem)
            self._sections[name] = section
        return cast("Section", self._sections[name])

    @property
    def sections_set(self) -> set[str]:
        """The `SECTIONS` that the environment or the file mentions."""
        sections = {name.upper().removeprefix("PENSTOCK_").partition("__")[0].lower() for name in os.environ}
        path = config_path()
        return (sections | set(tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else ())) & set(
            SECTIONS
        )

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @field_validator("log_level")
    @classmethod
    def _log_level_is_known(cls, value: str) -> str:
        if value.upper() not in logging.getLevelNamesMapping():
            raise ValueError("must be DEBUG, INFO, WARNING, ERROR or CRITICAL")
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis_url_can_be_read(cls, value: str) -> str:
        if value:
            RedisUrl.parse(value)
        return value

    @model_validator(mode="after")
    def _providers_of_flows_are_known(self) -> Self:
        for name, section in self:
            if isinstance(section, BaseModel) and (problem := _unknown_provider(name, section, self.providers)):
                raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _other_providers_are_known(self) -> Self:
        for name, profile in self.providers.items():
            if profile.fallback not in {"", LOCAL, *self.providers}:
                raise ValueError(f"providers: '{name}' falls back to '{profile.fallback}', which is not a provider")
            if profile.escalate not in {"", LOCAL, *self.providers}:
                raise ValueError(f"providers: '{name}' escalates to '{profile.escalate}', which is not a provider")
        if self.documents.escalate not in {"", LOCAL, *self.providers}:
            raise ValueError(f"documents.escalate: there is no provider '{self.documents.escalate}'")
        return self

    @model_validator(mode="after")
    def _living_workers_are_never_taken_for_lost(self) -> Self:
        if self.presence_ttl_s < 2 * self.presence_interval_s:
            raise ValueError(
                f"presence_ttl_s ({self.presence_ttl_s:g}) must be at least twice presence_interval_s "
                f"({self.presence_interval_s:g}): otherwise a worker with a late heartbeat counts as lost"
            )
        if self.sweep_interval_s < self.presence_interval_s:
            raise ValueError(
                f"sweep_interval_s ({self.sweep_interval_s:g}) must not be less than presence_interval_s "
                f"({self.presence_interval_s:g}): otherwise two sweeps miss a living worker after Redis was emptied"
            )
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
        """The socket of the embedded Redis: in the data folder, or in a private folder if no URL can hold that path.

        Another user may guess the private folder's name and create it first, so the URL requires it to be ours.
        """
        path = self.data_dir / "redis.sock"
        if len(str(path).encode()) <= MAX_SOCKET_PATH and not set("%?#") & set(str(path)):
            return path
        digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}-{digest}" / "redis.sock"

    @property
    def readers_socket(self) -> Path | None:
        """The socket of the process that forks readers; None if the path is too long for a socket."""
        path = self.data_dir / "readers.sock"
        return path if len(os.fsencode(path)) <= MAX_SOCKET_PATH else None

    @property
    def effective_redis_url(self) -> str:
        private = "" if self.redis_socket.parent == self.data_dir else "&private=true"
        return self.redis_url or f"unix://{self.redis_socket}?db=0{private}"

    @property
    def redis(self) -> RedisUrl:
        """The parsed URL of Redis."""
        return RedisUrl.parse(self.effective_redis_url)

    @property
    def broker_url(self) -> str:
        """The URL of Celery's broker and result backend."""
        return self.redis.celery

    @property
    def private_names(self) -> tuple[str, ...]:
        """The names of Penstock's files and folders in the data folder, which stay private in a shared folder."""
        folders = (self.upload_dir, self.screenshot_dir, self.temp_dir, self.output_dir, self.view_dir, self.answer_dir)
        return (*(folder.name for folder in folders), *_PRIVATE_NAMES)

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

    @property
    def view_dir(self) -> Path:
        """The folder of pictures of pages for people; missing pictures are rendered again."""
        return self.data_dir / "views"

    @property
    def answer_dir(self) -> Path:
        """The folder of paid answers that are not yet in the database."""
        return self.data_dir / "answers"


def _unknown_provider(flow: str, section: BaseModel, known: Mapping[str, object]) -> str:
    """Return the problem with the providers that a flow's settings name; empty without one."""
    for field in type(section).model_fields:
        name = getattr(section, field) if field.endswith("provider") else ""
        if name and name not in known:
            prefix = f"PENSTOCK_PROVIDERS__{name.upper()}__"
            others = f" (known are {', '.join(sorted(known))})" if known else ""
            return (
                f"PENSTOCK_{flow.upper()}__{field.upper()}: there is no provider '{name}'{others}. To add it, set "
                f"{prefix}BASE_URL, {prefix}API_KEY and {prefix}MODEL"
            )
    return ""


def config_path() -> Path:
    """Return the path of the TOML file with settings; the default file need not exist. Raises `UnreadableSettingsError`
    for a path that is too long."""
    named = os.environ.get(CONFIG)
    data_dir = os.environ.get("PENSTOCK_DATA_DIR")
    for variable, value in ((CONFIG, named), ("PENSTOCK_DATA_DIR", data_dir)):
        if value and len(os.fsencode(value)) > _MAX_PATH:
            raise UnreadableSettingsError(f"{variable}: the path is longer than {_MAX_PATH:,} bytes")
    return Path(named) if named else (Path(data_dir) if data_dir else user_data_path("penstock")) / "penstock.toml"


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the settings of this process, read once. Tests call `get_settings.cache_clear()`. Raises
    `UnreadableSettingsError` or `ValidationError`."""
    return Settings()
