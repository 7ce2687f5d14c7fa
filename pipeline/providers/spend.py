"""The cost of each provider per day. The traces are the truth; Redis keeps the running sum."""

from contextlib import suppress
from datetime import datetime, time, timedelta

from redis import RedisError
from sqlalchemy import func, select

from pipeline.engine.gate import provider_scope
from pipeline.engine.leases import script
from pipeline.engine.traces import AiCall
from pipeline.settings import ProviderProfile, quota
from pipeline.storage.context import Context


def next_reset(profile: ProviderProfile, now: datetime) -> datetime:
    """Return when the provider's day ends. By default 16:30 at UTC+8: docs/sources/music.md#breaker."""
    return quota.next_reset(now, time.fromisoformat(profile.quota_reset), quota.zone(profile.quota_zone))


def spent_today(context: Context, provider: str, profile: ProviderProfile) -> float:
    """Return the cost of the provider's calls since its day began: the running sum or the traces' sum, if higher."""
    ends = next_reset(profile, context.db.now())
    known = 0.0
    if context.online:
        with suppress(RedisError):
            known = _sum(context, provider, ends)
    return max(_traced(context, provider, ends), known)


def running_sum(context: Context, provider: str, profile: ProviderProfile) -> float:
    """Return Redis's sum of today's cost: complete, unless Redis was emptied since the last call with a cost. Raises
    `RedisError`."""
    return _sum(context, provider, next_reset(profile, context.db.now()))


def _sum(context: Context, provider: str, ends: datetime) -> float:
    return float(str(context.redis.get(_key(provider, ends)) or 0))


def _traced(context: Context, provider: str, ends: datetime) -> float:
    query = select(func.coalesce(func.sum(AiCall.cost), 0.0)).where(
        AiCall.provider == provider, AiCall.created_at >= ends - timedelta(days=1)
    )
    with context.db.read() as session:
        return float(session.execute(query).scalar_one())


def _key(provider: str, ends: datetime) -> str:
    return f"penstock:{{gates}}:spend:{provider}:{ends:%Y%m%d%H}"


def charge(context: Context, provider: str, profile: ProviderProfile, cost: float) -> bool:
    """Add a call's cost to today's sum, before its trace is written, and close the provider's queues if that reaches
    its cap.

    Return whether that closed them now. Raises `RedisError`.
    """
    ends = next_reset(profile, context.db.now())
    key, hash_key = _key(provider, ends), provider_scope(context.redis, provider).keys[0]
    add = context.redis.register_script(script("spend_add"))
    arguments = [cost, int(ends.timestamp() * 1000)]
    closed = add(keys=[key, hash_key], args=arguments)
    if closed is None:
        context.redis.set(key, _traced(context, provider, ends), nx=True, exat=ends + timedelta(hours=1))
        closed = add(keys=[key, hash_key], args=arguments)
    return bool(closed)
