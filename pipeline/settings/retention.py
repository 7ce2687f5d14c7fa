"""Retention periods. Results of your files are kept forever unless you configure otherwise; ledgers are not."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

Days = Annotated[float, Field(ge=0, le=36_500)]
Count = Annotated[int, Field(ge=0)]


class RetentionSettings(BaseModel):
    """0: no limit. Rows beyond either limit are removed, within the hour or with `penstock prune`."""

    documents_days: Days = 0
    """Days after its end that a finished document is kept, with its pages, attempts and files."""
    documents_count: Count = 0
    """How many finished documents are kept."""
    attempts_days: Days = 90
    """Days that attempts are kept. They are the cache as well: Penstock converts a page again, and pays again, when its
    attempt is gone. At least 2."""
    attempts_count: Count = 0
    """How many attempts are kept, besides those of the last two days."""
    calls_days: Days = 90
    """Days that calls to AI services stay on record. At least 2."""
    calls_count: Count = 0
    """How many calls stay on record, besides those of the last two days."""
    runs_days: Days = 90
    """Days after its end that a run of the music pipeline is kept. The last one stays, and so do all songs."""
    runs_count: Count = 0
    """How many runs that have ended are kept."""
    batches_days: Days = 1
    """Days after their end that Penstock keeps finished and cancelled batches of songs, of all runs but the last. Songs
    keep their results."""
    batches_count: Count = 0
    """How many of these are kept."""
    failed_batches_days: Days = 0
    """Days that failed batches of songs are kept, with the reason and the reply."""
    failed_batches_count: Count = 1000
    """How many of these are kept."""
    events_days: Days = 90
    """Days that events are kept for clients that follow the work."""
    events_count: Count = 0
    """How many events are kept."""

    @model_validator(mode="after")
    def _two_days_of_ledgers(self) -> Self:
        for name in ("attempts_days", "calls_days"):
            if 0 < getattr(self, name) < 2:
                raise ValueError(f"retention: {name} must be 0 (forever) or at least 2: caps and statistics count them")
        return self
