"""What requests say of the screenshots flow, and answers that differ from its views."""

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
"""Dead letters that one request names."""


class TakenShape(Shape):
    """What became of a frame that was sent: one word for it, and how its analysis stands now, which no view has."""

    model_config = example(outcome="accepted", id=40, status="pending", distance=31, nearest_id=39, threshold=10)
    outcome: str = Field(description="`accepted`, `known`, `duplicate`, `excluded` or `inactive` (its source is off).")
    id: int | None = Field(description="The frame, if it is kept.")
    status: WorkStatus | None = Field(description="How its analysis stands.")
    distance: int | None = Field(description="How many of 256 bits differ from the nearest frame.")
    nearest_id: int | None
    threshold: int | None = Field(description="Up to how many bits count as the same.")


class Size(StrEnum):
    """How large a picture is to be."""

    SMALL = "small"
    LARGE = "large"


class ExclusionsChange(Strict):
    """What is excluded from now on, beside what the settings exclude. null: as before."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"apps": ["Signal", "*bank*"]}]})
    apps: Annotated[list[Pattern], Field(max_length=200)] | None = None
    titles: Annotated[list[Pattern], Field(max_length=200)] | None = None


class SourceSwitch(Strict):
    """Whether frames of a source are taken."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"active": False}]})
    active: bool


class DeadLetterShape(BaseModel):
    """Work that was given up. Its id names its kind, too: those of views are of one kind each."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "batch:4",
                    "kind": "batch",
                    "reason": "no such model",
                    "attempts": 1,
                    "at": "2026-11-22T10:00:26Z",
                }
            ]
        }
    )
    id: str = Field(description="`batch:4`; merges and vectors are named by their nodes.")
    kind: LetterKind
    reason: str
    attempts: int
    at: datetime

    @classmethod
    def of(cls, one: DeadLetter) -> "DeadLetterShape":
        """A dead letter."""
        kind = LetterKind(one.kind)
        return cls(id=f"{kind}:{one.id}", kind=kind, reason=one.reason, attempts=one.attempts, at=one.at)


class DeadLetterFilter(Strict):
    """The same as the list's."""

    kind: LetterKind | None = None


class DeadLetterSelection(Strict):
    """Which dead letters: either `ids`, or a `filter` (none: all) with `all_matching`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"filter": {"kind": "batch"}, "all_matching": True}]})
    ids: Annotated[list[LetterId], Field(max_length=MOST_AT_ONCE)] | None = None
    filter: DeadLetterFilter = Field(default_factory=DeadLetterFilter)
    all_matching: bool = Field(default=False, description="Must be true to act on all that match.")

    @model_validator(mode="after")
    def _one_of_both(self) -> "DeadLetterSelection":
        if (self.ids is None) is not self.all_matching:
            raise ValueError("give ids, or a filter with all_matching: true")
        return self
