"""What can go wrong with a unit of work, as facts to decide by."""

from enum import StrEnum


class ErrorKind(StrEnum):
    """Whether trying again may help."""

    PERMANENT = "permanent"
    """It cannot: bad input, wrong key, unsupported."""
    TRANSIENT = "transient"
    """It may: time-outs, connections, 5xx, a busy database."""
    RATE_LIMITED = "rate_limited"
    """Too many calls at the moment; the unit is not at fault."""
    QUOTA = "quota"
    """A longer quota (a day's, the account's) is used up."""
    CANCELLED = "cancelled"


MAX_MESSAGE_CHARS = 2_000


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose. The message is for people, and cut."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE_CHARS else f"{message[: MAX_MESSAGE_CHARS - 1]}…")


class UnitError(PenstockError):
    """A unit of work failed. `retry_after_s`: what the server asked for, in seconds."""

    kind: ErrorKind = ErrorKind.TRANSIENT

    def __init__(
        self, message: str, *, kind: ErrorKind | None = None, retry_after_s: float | None = None, code: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind or type(self).kind
        self.retry_after_s = retry_after_s
        self.code = code
        """A short stable word for programs, such as `timeout` or `encrypted`."""


class NoWorkerWarning(UserWarning):
    """A program waits for work, and nobody is there to do it."""


class UserError(PenstockError):
    """What the user asked for cannot be done; nothing was changed. `code` is a short stable word."""

    def __init__(self, message: str, *, code: str = "invalid") -> None:
        super().__init__(message)
        self.code = code
