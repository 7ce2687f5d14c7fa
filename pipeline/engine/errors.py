"""What can go wrong with a unit of work, as facts that a decision can be made from."""

from enum import StrEnum


class ErrorKind(StrEnum):
    """What an error says about trying again."""

    PERMANENT = "permanent"
    """Trying again cannot help: bad input, wrong key, unsupported."""
    TRANSIENT = "transient"
    """May pass: time-outs, connections, 5xx, a busy database."""
    RATE_LIMITED = "rate_limited"
    """Too many calls for now; the unit itself is sound."""
    QUOTA = "quota"
    """A longer allowance (a day's, the account's) is used up."""
    CANCELLED = "cancelled"


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose. The message is fit for a person to read."""


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


class UserError(PenstockError):
    """Something the user asked for cannot be done; nothing was changed. `code` is a short stable word."""

    def __init__(self, message: str, *, code: str = "invalid") -> None:
        super().__init__(message)
        self.code = code
