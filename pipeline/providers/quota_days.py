"""A provider's day: when its daily quota and Penstock's spend cap reset."""

from datetime import datetime, time

from pipeline.engine import quota
from pipeline.settings import ProviderProfile


def next_reset(profile: ProviderProfile, now: datetime) -> datetime:
    """When the provider's day ends. Source 002, section 2.B: 16:30 at UTC+8."""
    return quota.next_reset(now, time.fromisoformat(profile.quota_reset), quota.zone(profile.quota_zone))
