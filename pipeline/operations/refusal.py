"""Why a caller may not do something, in words for people."""

from collections.abc import Mapping

from pipeline.engine.errors import UserError

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="penstock"'}
"""The header of an answer to whoever has no valid key."""


class Refused(UserError):
    """A caller may not do this, or not now. `headers` belong to the answer of an HTTP interface."""

    def __init__(self, message: str, *, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, code=code)
        self.headers = dict(headers or {})


def keyless() -> Refused:
    """The answer to whoever has no key where one is needed."""
    said = "this needs a key: send it as `Authorization: Bearer …`; `penstock keys create` makes one"
    return Refused(said, code="unauthorized", headers=CHALLENGE)
