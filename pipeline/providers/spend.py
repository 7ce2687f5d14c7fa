"""What each provider costs in a day. The traces are the truth; Redis keeps the running sum."""

from datetime import UTC, datetime, time, timedelta

from sqlalchemy import func, select

from pipeline.engine import quota
from pipeline.engine.traces import AiCall
from pipeline.settings import ProviderProfile
from pipeline.storage.context import Context


def next_reset(profile: ProviderProfile, now: datetime) -> datetime:
    """When the provider's day ends. Source 002, section 2.B: 16:30 at UTC+8."""
    return quota.next_reset(now, time.fromisoformat(profile.quota_reset), quota.zone(profile.quota_zone))


def spent_today(context: Context, provider: str, profile: ProviderProfile) -> float:
    """The cost of the provider's calls since its day began, by the traces."""
    since = next_reset(profile, datetime.now(UTC)) - timedelta(days=1)
    query = select(func.coalesce(func.sum(AiCall.cost), 0.0)).where(
        AiCall.provider == provider, AiCall.created_at >= since
    )
    with context.db.read() as session:
        return float(session.execute(query).scalar_one())


def add(context: Context, provider: str, profile: ProviderProfile, cost: float) -> float:
    """Add a call's cost, before its trace is written; returns the day's cost including it."""
    day_ends = next_reset(profile, datetime.now(UTC))
    key = f"penstock:{{gates}}:spend:{provider}:{day_ends:%Y%m%d%H}"
    if not context.redis.exists(key):
        context.redis.set(key, spent_today(context, provider, profile), nx=True, exat=day_ends + timedelta(hours=1))
    return context.redis.incrbyfloat(key, cost)
