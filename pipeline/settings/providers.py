"""Settings of AI services: addresses, prices, limits."""

import re
from collections.abc import Collection, Sequence
from datetime import time
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator, model_validator

from pipeline.settings import quota

PUBLIC_SERVICE = "https://api.openai.com/v1"
LOCAL = "local"
"""The provider that needs no service: text layer, layout and OCR on this machine."""

_LIKE = "wss://host or ws://host:8485"
_DATE = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|\d{3})$")
"""The end of a dated name: services report `gpt-4o-2024-08-06` or `claude-sonnet-4-20250514` for the requested name."""

MAX_PROMPT_BYTES = 32_000
NODE_DPI = 200
"""The resolution that character recognition needs, as in local conversion (`documents.ocr_dpi`)."""


class Price(BaseModel):
    """The price of a model for a million tokens, in the currency of the cap."""

    input: float = Field(default=0, ge=0)
    output: float = Field(default=0, ge=0)

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """Return the cost of one call with these numbers of tokens."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class ProviderProfile(BaseModel):
    """A named AI service with the OpenAI API, or the inference nodes behind a gateway."""

    kind: Literal["openai_compatible", "nodes"] = "openai_compatible"
    """The kind of provider: a service that speaks the OpenAI API, or `nodes`: docs/how-to/nodes.md behind a gateway."""
    base_url: str = Field(default=PUBLIC_SERVICE, validate_default=True)
    """The address of the API, up to and including `/v1`. For `nodes`: the `ws://` or `wss://` addresses of gateways,
    separated by commas; if one is unreachable, the client uses the next."""
    api_key: SecretStr = SecretStr("")
    """The key, which Penstock sends as a bearer token and never logs or stores. For `nodes`: a token of the kind
    session."""
    model: str = ""
    """The default model. For `nodes` it may stay empty: the node chooses. Name a model for vectors, since searches
    compare only vectors of the same model."""
    timeout_s: float = Field(default=120, gt=0, le=3600)
    """Hard limit of one call in seconds, from connecting to the last byte. Keep it below
    `PENSTOCK_DOCUMENTS__LEASE_S`."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """How many calls one document may have under way at once."""
    max_tokens: int = Field(default=8192, ge=1)
    """The longest answer in tokens; for pages, the preset's unless you set it. For `nodes`, the node's own setting
    counts."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """The temperature that each call sends; by default the preset's, and none if that names none. For `nodes`, the
    node's own setting counts."""
    request_fields: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request for a page or a text, such as `{"reasoning_effort": "none"}` or, for vLLM and
    SGLang, `{"chat_template_kwargs": {"enable_thinking": false}}`, which turn a model's reasoning off."""
    preset: str = ""
    """How to ask the model for a page and to read its reply (docs/how-to/document-models.md). Empty: chosen by the
    model's name, or else `general`."""
    prompt_file: Path | None = None
    """A text file with your own prompt for pages, of at most 32 kB; it replaces the preset's."""
    fallback: str = ""
    """Another provider, or `local`, that does this one's work while its breaker is open."""
    escalate: str = ""
    """Another provider, or `local`, to which pages go that this one reads doubtfully or fails on."""
    limits: str = ""
    """The limits of the service, such as `10/s, 500/min, 100000 tokens/min`; at most four. To change them live:
    `penstock queues limit`."""
    estimated_tokens: int = Field(default=0, ge=0)
    """How many tokens to assume for a call until the service reports its use. Limits in tokens need it."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Cost of a million tokens by model, with or without the date at the end of its name (`*`: all others): `{"*":
    {"input": 0.4, "output": 1.6}}`."""
    daily_spend_cap: float = Field(default=0, ge=0)
    """Once this much is spent in a day, the provider's queues close until the next day; `0`: no cap. Can be changed
    live."""
    quota_reset: str = "16:30"
    """Time of day at which a daily quota, and the day of the spend cap, begin."""
    quota_zone: str = "UTC+8"
    """The time zone of that time of day: a name such as `America/Los_Angeles`, or an offset."""
    breaker_fail_max: int = Field(default=5, ge=1)
    """How many transient failures in a row open the breaker."""
    breaker_cool_down_s: float = Field(default=15.0, gt=0)
    """The first pause after that; each further pause is twice as long."""
    breaker_longest_s: float = Field(default=900.0, gt=0)
    """The longest such pause."""
    image_dpi: int = Field(default=150, ge=36, le=600)
    """Resolution of PDF pages for the model. Unless you set it, the preset decides about the picture; the default for
    the kind `nodes` is 200."""
    when_no_node: Literal["wait", "error"] = "error"
    """For `nodes`, what a call does while no node offers its capability and model: `error` pauses the queue for a while
    and uses no attempt; `wait` waits at the gateway until `TIMEOUT_S`."""

    @property
    def lacks_key(self) -> bool:
        """Whether the key of the public service is missing; services at other addresses may need none."""
        return self.kind != "nodes" and self.base_url == PUBLIC_SERVICE and not self.api_key.get_secret_value().strip()

    def price(self, model: str) -> Price | None:
        """Return a model's price by its name, by its name without a date (`gpt-4o-2024-08-06`), or by `*`."""
        return self.prices.get(model) or self.prices.get(_DATE.sub("", model)) or self.prices.get("*")

    def cost(self, model: str, input_tokens: int, output_tokens: int) -> float:
        """Return the cost of a call by the price list; 0 for a model without a price."""
        price = self.price(model)
        return price.of(input_tokens, output_tokens) if price else 0.0

    @field_validator("request_fields")
    @classmethod
    def _fields_leave_the_question_alone(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := value.keys() & {"max_completion_tokens", "max_tokens", "messages", "model", "stream"}:
            raise ValueError(f"cannot set {', '.join(sorted(taken))}")
        return value

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

    @field_validator("prompt_file")
    @classmethod
    def _prompt_is_readable(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        path = value.expanduser().absolute()
        _prompt_in(path)
        return path

    @property
    def prompt(self) -> str:
        """The text of `prompt_file`; empty without one. Raises `ValueError` if the file has become unusable."""
        return _prompt_in(self.prompt_file) if self.prompt_file else ""

    @field_validator("base_url")
    @classmethod
    def _address_fits_the_kind(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("kind") == "nodes":
            return ",".join(gateway_urls(value))
        if not _is_url(value, {"http", "https"}):
            raise ValueError("must be an http:// or https:// URL; ws:// and wss:// are for kind 'nodes'")
        return value.rstrip("/")


def _prompt_in(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_PROMPT_BYTES + 1)
        if len(text) > MAX_PROMPT_BYTES:
            raise ValueError(f"{path} has more than {MAX_PROMPT_BYTES // 1000} kB: a prompt is shorter")
        prompt = text.decode().strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8") from error
    if not prompt:
        raise ValueError(f"{path} is empty")
    return prompt


def gateway_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of gateways, given as a list or separated by commas. Raises `ValueError`."""
    parts = urls.split(",") if isinstance(urls, str) else urls
    addresses = tuple(filter(None, (url.strip().rstrip("/") for url in parts)))
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
