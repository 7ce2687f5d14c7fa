"""The settings of webhooks."""

from pydantic import BaseModel, Field

from pipeline.settings import Settings

DAY_S = 86_400.0


class WebhookSettings(BaseModel):
    """`PENSTOCK_WEBHOOKS__…`, and the table `[webhooks]`."""

    allow_private: bool = False
    """Whether endpoints may have private addresses, such as 127.0.0.1 or 10.0.0.5."""
    callbacks: bool = False
    """Whether requests at docling-serve's addresses may name callbacks, to which their progress is sent."""
    timeout_s: float = Field(default=10, gt=0, le=60)
    """How many seconds an endpoint may take to answer."""
    backoff_s: list[float] = Field(
        default=[5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, DAY_S], min_length=1, max_length=30
    )
    """Waits before the second, third … attempt of a delivery, in seconds; up to a fifth is added at random."""
    width: int = Field(default=3, ge=1, le=64)
    """Deliveries under way at once."""
    per_endpoint: int = Field(default=2, ge=1, le=16)
    """Deliveries under way at once to one endpoint; to one that fails: 1."""
    longest_pause_s: float = Field(default=300, gt=0, le=DAY_S)
    """The longest pause before a failing endpoint, in seconds."""
    disable_after_days: float = Field(default=5, ge=0)
    """Days of failures without one success after which an endpoint is disabled; 0: never."""
    max_endpoints: int = Field(default=100, ge=1, le=10_000)
    """Most endpoints."""
    max_waiting: int = Field(default=10_000, ge=1)
    """Deliveries that wait for one endpoint; further events wait in the outbox."""
    deliveries_days: float = Field(default=30, ge=0, le=36_500)
    """Days that ended deliveries are kept; 0: for ever."""


def webhooks_of(settings: Settings) -> WebhookSettings:
    """Return the settings of webhooks."""
    return settings.section("webhooks", WebhookSettings)
