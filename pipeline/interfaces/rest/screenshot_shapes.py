"""Requests of the screenshots flow, and answers that differ from its views."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.flows.screenshots.states import LetterKind, WorkStatus
from pipeline.flows.screenshots.views import DeadLetter
from pipeline.interfaces.http.fields import Strict
from pipeline.interfaces.http.screenshots import LetterId, Pattern
from pipeline.interfaces.http.shapes import Shape, example

MOST_AT_ONCE = 500
"""The most dead letters in one request."""


class IntakeShape(Shape):
    """The outcome for a sent frame in one word, and the state of its analysis."""

    model_config = example(outcome="accepted", id=40, status="pending", distance=31, nearest_id=39, threshold=10)
    outcome: str = Field(description="`accepted`, `known`, `duplicate`, `excluded` or `inactive` (its source is off).")
    id: int | None = Field(description="The frame, if it is stored.")
    status: WorkStatus | None = Field(description="The state of its analysis.")
    distance: int | None = Field(description="The number of the 256 bits that differ from the nearest frame.")
    nearest_id: int | None
    threshold: int | None = Field(description="The most differing bits of a duplicate.")


class Size(StrEnum):
    """The size of a picture."""

    SMALL = "small"
    LARGE = "large"


class ExclusionsChange(Strict):
    """The exclusions from now on, in addition to those of the settings. null: no change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"apps": ["Signal", "*bank*"]}]})
    apps: Annotated[list[Pattern], Field(max_length=200)] | None = None
    titles: Annotated[list[Pattern], Field(max_length=200)] | None = None


class SourceSwitch(Strict):
    """Whether a source's frames are accepted."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"active": False}]})
    active: bool


class DeadLetterShape(BaseModel):
    """Work that was given up. Its id includes its kind."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "batch:4",
                    "kind": "batch",
                    "reason": "unknown model",
                    "attempts": 1,
                    "at": "2026-11-22T10:00:26Z",
                }
            ]
        }
    )
    id: str = Field(description="`batch:4`; a merge or vector has the id of its node.")
    kind: LetterKind
    reason: str
    attempts: int
    at: datetime

    @classmethod
    def of(cls, letter: DeadLetter) -> "DeadLetterShape":
        """Return the shape of a dead letter."""
        kind = LetterKind(letter.kind)
        return cls(id=f"{kind}:{letter.id}", kind=kind, reason=letter.reason, attempts=letter.attempts, at=letter.at)


class DeadLetterFilter(Strict):
    """The filter of the list."""

    kind: LetterKind | None = None


class DeadLetterSelection(Strict):
    """The dead letters: either `ids`, or a `filter` (none: all) with `all_matching`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"filter": {"kind": "batch"}, "all_matching": True}]})
    ids: Annotated[list[LetterId], Field(max_length=MOST_AT_ONCE)] | None = None
    filter: DeadLetterFilter = Field(default_factory=DeadLetterFilter)
    all_matching: bool = Field(default=False, description="Must be true to act on all that match.")

    @model_validator(mode="after")
    def _exactly_one(self) -> "DeadLetterSelection":
        if (self.ids is None) is not self.all_matching:
            raise ValueError("give ids, or a filter with all_matching: true")
        return self
