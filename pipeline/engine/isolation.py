"""What one scope or flow raises never keeps others from their turn."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


@contextmanager
def isolated(event: str, *through: type[Exception], **fields: str) -> Iterator[None]:
    """Log what is raised inside, as `event` with `fields`, and go on after it. What is `through` is raised."""
    try:
        yield
    except through:
        raise
    except Exception as error:
        log.exception(event, error=type(error).__name__, **fields)
