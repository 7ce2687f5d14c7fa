"""Treat a Redis at its memory limit as unreachable: callers wait and retry."""

from redis._parsers.base import BaseParser
from redis.exceptions import OutOfMemoryError, ResponseError

_parse_error = BaseParser.parse_error


class RedisFull(OutOfMemoryError):
    """Redis refuses writes until memory is free again."""


def _parse(response: str) -> ResponseError:
    # If a script meets the limit, Redis 6 wraps this error in the message of another one.
    if "OOM command not allowed" in response:
        return RedisFull(response)
    return _parse_error(response)  # type: ignore[no-any-return, no-untyped-call]


def tell_apart() -> None:
    """Make all Redis clients of this process, also Celery's, raise `RedisFull` when Redis is at its memory limit."""
    BaseParser.parse_error = staticmethod(_parse)  # type: ignore[method-assign]
