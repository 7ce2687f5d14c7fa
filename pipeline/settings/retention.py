"""How long things are kept. What was made of your files is kept for ever unless you say otherwise; ledgers are not."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

Days = Annotated[float, Field(ge=0, le=36_500)]
Count = Annotated[int, Field(ge=0)]


class RetentionSettings(BaseModel):
    """0: no limit. What is beyond either limit goes, within the hour or with `penstock prune`."""

    documents_days: Days = 0
    """Finished documents with their pages, attempts and files, by when they ended."""
    documents_count: Count = 0
    attempts_days: Days = 90
    """The ledger of attempts, which is the cache as well."""
    attempts_count: Count = 0
    calls_days: Days = 90
    """The record of calls to AI services."""
    calls_count: Count = 0
    runs_days: Days = 90
    """Runs of the music pipeline that have ended, with what is left of their batches. The last one stays."""
    runs_count: Count = 0
    batches_days: Days = 1
    """Batches of the music pipeline that are done or cancelled, of all runs but the last, which counts them."""
    batches_count: Count = 0
    failed_batches_days: Days = 0
    """Failed batches, with the reason and the reply, for whoever looks into it."""
    failed_batches_count: Count = 1000
    events_days: Days = 90
    """Events of those who follow the work, and the progress that commands show: of that, Redis never holds more than
    about 10,000."""
    events_count: Count = 0

    @model_validator(mode="after")
    def _two_days_of_ledgers(self) -> Self:
        for name in ("attempts_days", "calls_days"):
            if 0 < getattr(self, name) < 2:
                raise ValueError(f"retention: {name} must be 0 (for ever) or at least 2: caps and figures count them")
        return self
