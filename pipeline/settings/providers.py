"""AI services: where they are, what they cost, what they allow."""

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
"""The end of a dated name: services report `gpt-4o-2024-08-06` or `claude-sonnet-4-20250514` for the name asked for."""

NODE_DPI = 200
"""What recognition of characters needs: as local conversion has it (`documents.ocr_dpi`)."""


class Price(BaseModel):
    """What a model costs, in the currency of the cap, for a million tokens."""

    input: float = Field(default=0, ge=0)
    output: float = Field(default=0, ge=0)

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """The cost of one call."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class ProviderProfile(BaseModel):
    """One named AI service: one that speaks the OpenAI API, or the inference nodes behind a gateway."""

    kind: Literal["openai_compatible", "nodes"] = "openai_compatible"
    base_url: str = Field(default=PUBLIC_SERVICE, validate_default=True)
    """Of `nodes`: the addresses of gateways, separated by commas."""
    api_key: SecretStr = SecretStr("")
    model: str = ""
    timeout_s: float = Field(default=120, gt=0, le=3600)
    """Hard limit of one call, from connect to the last byte. `pageTimeout` of docs/sources/documents.md#settings."""
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
    """By model, with or without the date at the end of its name; `*` for all others."""
    daily_spend_cap: float = Field(default=0, ge=0)
    """Spent in a day (which begins at `quota_reset`), the provider's queues close until the next; 0: no cap."""
    quota_reset: str = "16:30"
    """Time of day at which a daily quota resets, in `quota_zone`. Rule: docs/sources/music.md#breaker."""
    quota_zone: str = "UTC+8"
    breaker_fail_max: int = Field(default=5, ge=1)
    """Transient failures in a row that open the breaker."""
    breaker_cool_down_s: float = Field(default=15.0, gt=0)
    """The first pause after them; each further one is twice as long, up to `breaker_longest_s`."""
    breaker_longest_s: float = Field(default=900.0, gt=0)
    image_dpi: int = Field(default=150, ge=36, le=600)
    """Of the pictures of pages that it is shown. For nodes `NODE_DPI`, if nothing else is set."""
    when_no_node: Literal["wait", "error"] = "error"
    """What a call does while no node offers what it asks for: wait until `timeout_s`, or pause the queue."""

    @property
    def lacks_key(self) -> bool:
        """Whether a key is missing for sure; services on one's own machines often need none."""
        return self.kind != "nodes" and self.base_url == PUBLIC_SERVICE and not self.api_key.get_secret_value().strip()

    def price(self, model: str) -> Price | None:
        """The price of a model, by its name, by its name without a date (`gpt-4o-2024-08-06`), or by `*`."""
        return self.prices.get(model) or self.prices.get(_DATE.sub("", model)) or self.prices.get("*")

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """What a call cost, by the price list; 0 for a model without a price."""
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
    """The addresses of gateways, given as a list or separated by commas. Raises `ValueError`."""
    given = urls.split(",") if isinstance(urls, str) else urls
    found = tuple(filter(None, (url.strip().rstrip("/") for url in given)))
    for url in found:
        if not _is_url(url, {"ws", "wss"}) or any(urlsplit(url)[3:]) or urlsplit(url).username is not None:
            raise ValueError(f"the address of a gateway looks like {_LIKE}, without user, query or anchor")
    if not found:
        raise ValueError(f"needs the address of a gateway, such as {_LIKE}")
    return found


def _is_url(value: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False
