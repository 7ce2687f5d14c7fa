"""Settings of AI services: addresses, prices, limits."""

import re
from collections.abc import Collection, Sequence
from datetime import time
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator, model_validator

from pipeline.settings import quota

PUBLIC_SERVICE = "https://api.openai.com/v1"
LOCAL = "local"
"""The provider that needs no service: text layer, layout and OCR on this machine."""

_LIKE = "wss://host or ws://host:8485"
_DATE = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|\d{3})$")
"""The end of a dated name: services report `gpt-4o-2024-08-06` or `claude-sonnet-4-20250514` for the requested name."""

NODE_DPI = 200
"""The resolution that character recognition needs, as in local conversion (`documents.ocr_dpi`)."""


class Price(BaseModel):
    """The price of a model for a million tokens, in the currency of the cap."""

    input: float = Field(default=0, ge=0)
    output: float = Field(default=0, ge=0)

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """Return the cost of one call."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class ProviderProfile(BaseModel):
    """A named AI service with the OpenAI API, or the inference nodes behind a gateway."""

    kind: Literal["openai_compatible", "nodes"] = "openai_compatible"
    base_url: str = Field(default=PUBLIC_SERVICE, validate_default=True)
    """For `nodes`: the addresses of gateways, separated by commas."""
    api_key: SecretStr = SecretStr("")
    model: str = ""
    timeout_s: float = Field(default=120, gt=0, le=3600)
    """Hard limit of one call, from connect to the last byte. `pageTimeout` of docs/sources/documents.md#settings."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """Concurrent calls of one document."""
    max_tokens: int = Field(default=8192, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    fallback: str = ""
    """Another provider (or `local`) that takes over while this one's breaker is open."""
    limits: str = ""
    """The service's limits, such as `10/s, 500/min, 100000 tokens/min`; can be changed live. Empty: no limit."""
    estimated_tokens: int = Field(default=0, ge=0)
    """Tokens that a call is assumed to use until it reports them; needed for limits in tokens."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """By model, with or without the date at the end of its name; `*` for all others."""
    daily_spend_cap: float = Field(default=0, ge=0)
    """When a day's spending (from `quota_reset`) reaches this, its queues close until the next; 0: no cap."""
    quota_reset: str = "16:30"
    """Time of day at which a daily quota resets, in `quota_zone`. Rule: docs/sources/music.md#breaker."""
    quota_zone: str = "UTC+8"
    breaker_fail_max: int = Field(default=5, ge=1)
    """Transient failures in a row that open the breaker."""
    breaker_cool_down_s: float = Field(default=15.0, gt=0)
    """The breaker's first pause; each further pause is twice as long, up to `breaker_longest_s`."""
    breaker_longest_s: float = Field(default=900.0, gt=0)
    image_dpi: int = Field(default=150, ge=36, le=600)
    """The resolution of the pictures of pages. For nodes the default is `NODE_DPI`."""
    when_no_node: Literal["wait", "error"] = "error"
    """What a call does while no node offers its capability: wait until `timeout_s`, or pause the queue."""

    @property
    def lacks_key(self) -> bool:
        """Whether a required key is missing; services on one's own machines often need none."""
        return self.kind != "nodes" and self.base_url == PUBLIC_SERVICE and not self.api_key.get_secret_value().strip()

    def price(self, model: str) -> Price | None:
        """Return a model's price by its name, by its name without a date (`gpt-4o-2024-08-06`), or by `*`."""
        return self.prices.get(model) or self.prices.get(_DATE.sub("", model)) or self.prices.get("*")

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """Return the cost of a call by the price list; 0 for a model without a price."""
        price = self.price(model)
        return price.of(input_tokens, output_tokens) if price else 0.0

    @field_validator("quota_reset")
    @classmethod
    def _reset_is_a_time_of_day(cls, value: str) -> str:
        try:
            time.fromisoformat(value)
        except ValueError as error:
            raise ValueError("must be a time of day such as 16:30") from error
        return value

    @field_validator("quota_zone")
    @classmethod
    def _zone_is_known(cls, value: str) -> str:
        quota.zone(value)
        return value

    @model_validator(mode="after")
    def _nodes_recognise_characters(self) -> Self:
        if self.kind == "nodes" and "image_dpi" not in self.model_fields_set:
            self.image_dpi = NODE_DPI
        return self

    @field_validator("base_url")
    @classmethod
    def _address_fits_the_kind(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("kind") == "nodes":
            return ",".join(gateway_urls(value))
        if not _is_url(value, {"http", "https"}):
            raise ValueError("must be an http:// or https:// URL; ws:// and wss:// are for kind 'nodes'")
        return value.rstrip("/")


def gateway_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of gateways, given as a list or separated by commas. Raises `ValueError`."""
    given = urls.split(",") if isinstance(urls, str) else urls
    addresses = tuple(filter(None, (url.strip().rstrip("/") for url in given)))
    for url in addresses:
        if not _is_url(url, {"ws", "wss"}) or any(urlsplit(url)[3:]) or urlsplit(url).username is not None:
            raise ValueError(f"the address of a gateway looks like {_LIKE}, without user, query or anchor")
    if not addresses:
        raise ValueError(f"needs the address of a gateway, such as {_LIKE}")
    return addresses


def _is_url(value: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False
