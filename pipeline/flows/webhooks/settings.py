"""The settings of webhooks."""

from pydantic import BaseModel, Field

from pipeline.settings import Settings

DAY_S = 86_400.0


class WebhookSettings(BaseModel):
    """`PENSTOCK_WEBHOOKS__…`, and the table `[webhooks]`."""

    allow_private: bool = False
    """Whether endpoints may have private addresses, such as 127.0.0.1 or 10.0.0.5."""
    timeout_s: float = Field(default=10, gt=0, le=60)
    """Most seconds that an endpoint may take to answer."""
    backoff_s: list[float] = Field(
        default=[5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, DAY_S], min_length=1, max_length=30
    )
    """Waits before the second, third … attempt of a delivery, as Standard Webhooks advises."""
    width: int = Field(default=3, ge=1, le=64)
    """Most deliveries under way at once. Failing endpoints that do not answer share at most one of them."""
    per_endpoint: int = Field(default=2, ge=1, le=16)
    """Most deliveries under way at once to one endpoint; to a failing one: 1."""
    longest_pause_s: float = Field(default=300, gt=0, le=DAY_S)
    """The longest pause of a failing endpoint. The first pause takes 5 s, and each further failure doubles it."""
    disable_after_days: float = Field(default=5, ge=0)
    """Days of failures without a success after which Penstock disables an endpoint; 0: never."""
    max_endpoints: int = Field(default=100, ge=1, le=10_000)
    max_waiting: int = Field(default=10_000, ge=1)
    """Most deliveries that wait for one endpoint. Further events wait in the outbox, which keeps them for
    `retention.events_days`."""
    deliveries_days: float = Field(default=30, ge=0, le=36_500)
    """Days to keep ended deliveries with their attempts; 0: forever."""


def webhooks_of(settings: Settings) -> WebhookSettings:
    """Return the settings of webhooks."""
    return settings.section("webhooks", WebhookSettings)
