"""The result of one message's work, in one form for all kinds of work, for the code that sends the next message."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Settled:
    """The result of a message's work. All defaults: no unit was due, or the claim was lost."""

    done: int = 0
    """The number of units (or steps of a unit) whose results this message stored."""
    requeue: bool = False
    """Whether the scope has more for this message, which should then queue up at the tail."""
    retry_in_s: float | None = None
    """Seconds until a failed or refused unit is due."""
    status: StrEnum | None = None
    """State of the unit's row now; None: this message settled none."""
    changed: bool = False
    """Whether the scope changed visibly, in state or percentage."""
    size: int = 1
    """How many units the next message should claim at once."""
