"""A Redis that has reached its memory limit is as good as away: whoever meets it waits and tries again."""

from redis._parsers.base import BaseParser
from redis.exceptions import OutOfMemoryError, ResponseError

_parse_error = BaseParser.parse_error


class RedisFull(OutOfMemoryError):
    """Redis takes nothing more in until memory is free again."""


def _parse(response: str) -> ResponseError:
    # Where a script met the limit, Redis 6 says so within the message of another error.
    if "OOM command not allowed" in response:
        return RedisFull(response)
    return _parse_error(response)  # type: ignore[no-any-return, no-untyped-call]


def tell_apart() -> None:
    """Have all clients of this process raise `RedisFull`: Celery's are not made by us."""
    BaseParser.parse_error = staticmethod(_parse)  # type: ignore[method-assign]
