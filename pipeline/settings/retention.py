"""Retention periods. Results of your files are kept forever unless you configure otherwise; ledgers are not."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

Days = Annotated[float, Field(ge=0, le=36_500)]
Count = Annotated[int, Field(ge=0)]


class RetentionSettings(BaseModel):
    """0: no limit. Rows beyond either limit are removed, within the hour or with `penstock prune`."""

    documents_days: Days = 0
    """Finished documents with their pages, attempts and files, by their end."""
    documents_count: Count = 0
    attempts_days: Days = 90
    """The ledger of attempts, which is also the cache."""
    attempts_count: Count = 0
    calls_days: Days = 90
    """The record of calls to AI services."""
    calls_count: Count = 0
    runs_days: Days = 90
    """Finished runs of the music pipeline, with any remaining batches. The last run stays."""
    runs_count: Count = 0
    batches_days: Days = 1
    """Done or cancelled batches of the music pipeline, except those of the last run, which counts them."""
    batches_count: Count = 0
    failed_batches_days: Days = 0
    """Failed batches, with the reason and the reply, for investigation."""
    failed_batches_count: Count = 1000
    events_days: Days = 90
    """Events for followers of the work, and the progress that commands show; of the latter, Redis never holds more than
    about 10,000."""
    events_count: Count = 0

    @model_validator(mode="after")
    def _two_days_of_ledgers(self) -> Self:
        for name in ("attempts_days", "calls_days"):
            if 0 < getattr(self, name) < 2:
                raise ValueError(f"retention: {name} must be 0 (forever) or at least 2: caps and statistics count them")
        return self
