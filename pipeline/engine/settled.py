"""What one message did, for whoever sends the next: the same answer from every unit of work of every flow."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Settled:
    """How a message's work ended. All defaults: nothing was due, or the claim had been taken away."""

    done: int = 0
    """Units (or steps of one) whose results this message stored."""
    again: bool = False
    """There is more for this message: it should take its place at the tail of the queue again."""
    retry_in_s: float | None = None
    """Seconds until a unit that failed or was refused is due."""
    status: StrEnum | None = None
    """State of the unit's row now; None: this message settled none."""
    changed: bool = False
    """The scope moved visibly, in state or percentage: whoever follows it wants to know."""
    size: int = 1
    """Units that the next message should claim at once."""
