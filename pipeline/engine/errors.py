"""Errors of units of work, as facts to decide by."""

import re
from dataclasses import dataclass
from enum import StrEnum


class ErrorKind(StrEnum):
    """Whether a retry may help."""

    PERMANENT = "permanent"
    """A retry cannot help: bad input, wrong key, unsupported."""
    TRANSIENT = "transient"
    """A retry may help: time-outs, connections, 5xx, a busy database."""
    RATE_LIMITED = "rate_limited"
    """Too many calls at the moment; the unit is not at fault."""
    QUOTA = "quota"
    """A longer quota (a day's, the account's) is used up."""
    UNAVAILABLE = "unavailable"
    """The provider refuses calls: bad key, unknown model, no credit. A unit is at fault only if others succeed."""
    CANCELLED = "cancelled"


OUTCOMES = ("ok", "failed", *(kind.value for kind in ErrorKind))
"""Outcomes of calls to AI services, for filters. `failed`: any but `ok`."""
MAX_MESSAGE_CHARS = 2_000


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose. The message is for people; long ones are cut."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE_CHARS else f"{message[: MAX_MESSAGE_CHARS - 1]}…")


LATELY_S = 300.0
"""An older success proves nothing: an outage may have begun since."""


@dataclass(frozen=True)
class Health:
    """The state of a provider when a call to it fails."""

    took_s: float
    """The length of the failed call."""
    worked_s_ago: float | None
    """Seconds since another call last succeeded; None: none is on record."""
    answers: bool = False
    """Whether the provider answers a free question, although its breaker opened several times in a row."""

    def blames_unit(self, released_s_ago: float | None) -> bool:
        """Whether the unit is at fault: the provider answers a free question, or another call succeeded during this
        one, or since the unit's last release, in the last `LATELY_S` seconds. `released_s_ago`: seconds since that
        release; None: never released."""
        if self.answers:
            return True
        if self.worked_s_ago is None:
            return False
        since_s = max(self.took_s, min(released_s_ago or 0.0, LATELY_S))
        return self.worked_s_ago <= since_s


class UnitError(PenstockError):
    """A unit of work failed. `retry_after_s`: the wait that the server asked for, in seconds."""

    kind: ErrorKind = ErrorKind.TRANSIENT
    health: Health | None = None
    """The state of the called provider; None if no call failed."""
    beginning: str = ""
    """The first characters of the server's answer, for records that people read. Never log it."""

    def __init__(
        self, message: str, *, kind: ErrorKind | None = None, retry_after_s: float | None = None, code: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind or type(self).kind
        self.retry_after_s = retry_after_s
        self.code = code
        """A short stable word for programs, such as `timeout` or `encrypted`."""


class NoWorkerWarning(UserWarning):
    """A program waits for work, but no worker runs."""


class UserError(PenstockError):
    """The user's request is impossible; nothing was changed. `code` is a short stable word."""

    def __init__(self, message: str, *, code: str = "invalid") -> None:
        super().__init__(message)
        self.code = code


_UNTOLD = {
    **dict.fromkeys(("io_error", "io"), "the server cannot read or write a file; its log says which"),
    "permission": "the server may not read or write a file of its own; its log says which",
    "unreadable": "the server cannot read a file of its own; its log says which",
    "output": "the server cannot write a file of its own; its log says which",
    "disk_full": "no space left on the disk of the server",
    "installation": "the server's database and data folder do not belong together; its log says more",
    "schema": "the server's database is not up to date: run `penstock migrate` there",
}
"""What replaces messages with paths, by code."""
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+(?=[^\s/'\"])")


def told(error: Exception) -> str:
    """Return why, in words for callers, who learn no path of this machine. The log may have the error itself."""
    if isinstance(error, PenstockError):
        return _UNTOLD.get(getattr(error, "code", ""), str(error))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _FOLDERS.sub("", str(error))
