"""Isolate scopes and flows: an error of one never stops the others."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


@contextmanager
def isolated(event: str, *through: type[Exception], **fields: str) -> Iterator[None]:
    """Log an exception inside as `event` with `fields`, and suppress it. Exceptions of the types `through` pass."""
    try:
        yield
    except through:
        raise
    except Exception as error:
        log.exception(event, error=type(error).__name__, **fields)
