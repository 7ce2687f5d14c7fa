"""Sends a message to an endpoint, and classifies the answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.webhooks.models import MAX_PREVIEW
from pipeline.flows.webhooks.settings import WebhookSettings
from pipeline.reading.sandbox.limits import FetchLimits

MAX_ANSWER_BYTES = 65_536
_DELIVERED = frozenset({"too_large", "unsupported"})
"""Errors of the answer's body after a status of success: the message is delivered."""
_PERMANENT = frozenset({"http_410", "bad_url", "address_refused"})
"""Permanent errors. All others may pass, because people repair receivers and certificates."""


@dataclass(frozen=True)
class Answer:
    """An endpoint's answer. `error`: why it does not count as delivered."""

    status: int
    preview: str = ""
    """The beginning of the answer."""
    error: UnitError | None = None


def post(url: str, body: bytes, headers: Mapping[str, str], rules: WebhookSettings) -> Answer:
    """Send a message, and return the answer, with an `error` for a bad HTTP status. A success whose body is too large
    or unsupported becomes status 200 without a preview.

    Raises `UnitError` without an answer, or for a forbidden address.
    """
    from pipeline.reading.web.fetch import fetch  # noqa: PLC0415  # only workers need an HTTP client

    limits = FetchLimits(MAX_ANSWER_BYTES, rules.timeout_s, connect_s=rules.timeout_s / 2, max_redirects=0)
    try:
        answer = fetch(
            url, limits, lambda: True, method="POST", body=body, headers=headers, allow_private=rules.allow_private
        )
    except UnitError as failure:
        if failure.code in _DELIVERED:
            return Answer(200)
        kind = ErrorKind.PERMANENT if failure.code in _PERMANENT else ErrorKind.TRANSIENT
        error = UnitError(str(failure), kind=kind, retry_after_s=failure.retry_after_s, code=failure.code)
        word, _, status = failure.code.partition("_")
        if word == "http" and status.isdecimal():
            return Answer(int(status), failure.beginning[:MAX_PREVIEW], error)
        raise error from None
    return Answer(answer.status, answer.body[: 4 * MAX_PREVIEW].decode("utf-8", "replace")[:MAX_PREVIEW])
