"""Refusals of callers' requests, in words for people."""

from collections.abc import Mapping

from pipeline.engine.errors import UserError

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="penstock"'}
"""The header of an answer to a request without a valid key."""


class Refused(UserError):
    """The caller may not do this, or not now. `headers`: headers of an HTTP answer."""

    def __init__(self, message: str, *, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, code=code)
        self.headers = dict(headers or {})


def keyless() -> Refused:
    """Return (do not raise) the refusal, 401, of a request that needs a key but has none."""
    message = "this needs a key: send it as `Authorization: Bearer …`; `penstock keys create` makes one"
    return Refused(message, code="unauthorized", headers=CHALLENGE)
