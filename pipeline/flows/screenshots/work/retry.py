"""When work is tried again. Source 000, section 2.3.2."""

import random
from dataclasses import dataclass

from pipeline.engine.retry import Policy
from pipeline.settings import ScreenshotSettings


@dataclass(frozen=True)
class JitteredPolicy(Policy):
    """Waits from a table, with up to `jitter_s` seconds added, whatever the wait."""

    jitter: float = 0.0
    jitter_s: float = 10.0

    def wait_s(self, attempt: int) -> float:
        return super().wait_s(attempt) + self.jitter_s * random.random()  # noqa: S311  # spreads load, guards nothing


def policy(settings: ScreenshotSettings) -> JitteredPolicy:
    """5, 15, 60, 300, 600 s, each plus 0–10 s: six attempts, for with five the last wait is never used."""
    return JitteredPolicy(tuple(settings.backoff_s), jitter_s=settings.jitter_s)
