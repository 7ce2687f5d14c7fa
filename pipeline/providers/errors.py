"""Turn failed calls to a provider into `UnitError`s, which decide what happens next.

The structured parts of a reply (error codes, Google's details, headers) take precedence over its text: "quota exceeded"
also appears in the 429 of a limit per minute, which passes without action.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import openai
from pydantic import SecretStr

from pipeline.engine import foreign_json
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.retry import seconds_or_date
from pipeline.engine.tables import storable

MAX_MESSAGE = 500
"""Longer messages are cut to this many characters."""

MAX_WAIT_S = 7 * 24 * 3600.0
"""The longest accepted wait; no provider's window is longer."""

_ACCOUNT_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance"}
_REFUSED_CODES = {"content_filter", "content_policy_violation", "responsibleaipolicyviolation"}
_LENGTH_CODES = {"context_length_exceeded", "string_above_max_length"}
_KEY_CODES = {"invalid_api_key", "api_key_invalid", "api_key_expired"}
_BY_CODE = (
    (_ACCOUNT_CODES, (ErrorKind.UNAVAILABLE, "no_credit")),
    (_KEY_CODES, (ErrorKind.UNAVAILABLE, "auth")),
    (_REFUSED_CODES, (ErrorKind.PERMANENT, "refused")),
    (_LENGTH_CODES, (ErrorKind.PERMANENT, "too_large")),
)
_DAILY_WORDS = re.compile(r"\bper[ -]day\b|\bdaily\b|\b[RT]PD\b", re.IGNORECASE)

_BY_STATUS = {
    400: (ErrorKind.PERMANENT, "bad_request"),
    401: (ErrorKind.UNAVAILABLE, "auth"),
    402: (ErrorKind.UNAVAILABLE, "no_credit"),
    403: (ErrorKind.UNAVAILABLE, "forbidden"),
    404: (ErrorKind.UNAVAILABLE, "not_found"),
    405: (ErrorKind.UNAVAILABLE, "not_found"),
    408: (ErrorKind.TRANSIENT, "timeout"),
    409: (ErrorKind.TRANSIENT, "busy"),
    413: (ErrorKind.PERMANENT, "too_large"),
    422: (ErrorKind.PERMANENT, "bad_request"),
    425: (ErrorKind.TRANSIENT, "busy"),
    429: (ErrorKind.RATE_LIMITED, "rate_limited"),
}

_WORDS = {
    "auth": "refused the key ({status}): check {env}API_KEY",
    "forbidden": "does not allow this call ({status}): check what the key and the account may use, model '{model}' too",
    "not_found": "knows no model '{model}' or no such address ({status}): check {env}MODEL and {env}BASE_URL",
    "redirect": "answered with a redirect ({status}), which Penstock does not follow: check {env}BASE_URL",
    "bad_request": "cannot take this request ({status})",
    "too_large": "rejects the request as too large ({status}): lower {env}IMAGE_DPI, or send less text",
    "refused": "refused to answer about this content ({status})",
    "timeout": "gave up waiting ({status})",
    "busy": "could not take the call just now ({status})",
    "server_error": "failed ({status})",
    "overloaded": "has no room for the call ({status})",
    "rate_limited": "takes no more calls for now ({status})",
    "quota_day": "has used up the day's allowance ({status})",
    "no_credit": "has no credit left for this account ({status}): add credit or raise the account's limit",
}

_REASONING = (
    'turn reasoning off or down with {env}REQUEST_FIELDS, such as {{"reasoning_effort": "none"}} (or "low"), or for '
    'vLLM and SGLang {{"chat_template_kwargs": {{"enable_thinking": false}}}}'
)
_STATUS_OF = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "deadline_exceeded": 504,
    "internal": 500,
    "invalid_argument": 400,
    "invalid_request_error": 400,
    "not_found": 404,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_denied": 403,
    "permission_error": 403,
    "rate_limit_error": 429,
    "request_too_large": 413,
    "resource_exhausted": 429,
    "timeout_error": 504,
    "unauthenticated": 401,
    "unavailable": 503,
}
"""The status of an error by its name at Anthropic and Google."""
_SETTING_OF = {"temperature": "TEMPERATURE", "max_tokens": "MAX_TOKENS", "max_completion_tokens": "MAX_TOKENS"}

_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|gsk|key)[-_][-\w*.…]{6,}|\bAIza[-\w*]{8,}|\bBearer\s+\S+", re.IGNORECASE)
_SHORTEST_KEY = 8
"""Shorter keys are placeholders of services without keys, such as "x", and parts of ordinary words."""
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_TRY_AGAIN = re.compile(r"(?:try again|retry) in ((?:\d+(?:\.\d+)?(?:ms|[dhms]))+)", re.IGNORECASE)
_REQUESTED = re.compile(
    r"\blimit:? (?P<limit>\d[\d,]{0,15})\b[^\d]{1,40}?\brequested:? (?P<requested>\d[\d,]{0,15})", re.IGNORECASE
)
_OVERLOADED = frozenset({502, 503, 504, 529})
_MAX_READ = 20_000
"""How much of a message is read."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DATA_LIKE = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,[A-Za-z0-9+/=]*|[A-Za-z0-9+/=_-]{80,}")


@dataclass(frozen=True)
class ErrorFacts:
    """The facts in an error's body. `codes`: error codes, types and reasons, in lower case."""

    message: str = ""
    codes: frozenset[str] = frozenset()
    param: str = ""
    quota_ids: tuple[str, ...] = ()
    retry_delay_s: float | None = None


@dataclass(frozen=True)
class Target:
    """The facts of a failed call for its error's message. `timeout_s`: its time limit."""

    provider: str
    model: str
    timeout_s: float
    secret: SecretStr
    is_own_model: bool = False
    """The caller chose the model: an unknown model is then not an error of the settings."""

    @property
    def env(self) -> str:
        """The prefix of this provider's environment variables."""
        return f"PENSTOCK_PROVIDERS__{self.provider.upper()}__"


def unit_error(
    target: Target, message: str, *, kind: ErrorKind, code: str, retry_after_s: float | None = None
) -> UnitError:
    """Return (do not raise) an error of `target`, whose message has at most `MAX_MESSAGE` characters, without keys and
    images."""
    text = clean(f"provider '{target.provider}' {message}", target.secret)
    return UnitError(text, kind=kind, code=code, retry_after_s=retry_after_s)


def from_exception(error: Exception, target: Target, now: datetime) -> UnitError:
    """Return (do not raise) the `UnitError` for an SDK exception, or for the `TimeoutError` of a call at its limit.
    `now`: with a time zone."""
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        message = f"did not finish within {target.timeout_s:g} s (raise {target.env}TIMEOUT_S if it needs longer)"
        return unit_error(target, message, kind=ErrorKind.TRANSIENT, code="timeout")
    if isinstance(error, openai.APIStatusError):
        return from_reply(error.status_code, error.response.headers, error.response.content, target, now)
    cause = error.__cause__ or error
    reason = f"{type(cause).__name__}: {cause}".removesuffix(": ")
    message = f"could not be reached ({reason}): check the network and {target.env}BASE_URL"
    return unit_error(target, message, kind=ErrorKind.TRANSIENT, code="connection")


def from_reply(status: int, headers: Mapping[str, str], body: bytes, target: Target, now: datetime) -> UnitError:
    """Return (do not raise) the `UnitError` for a reply with an error status. Header names must ignore case, or be in
    lower case."""
    facts = read_error(body)
    kind, code = classify(status, facts)
    if target.is_own_model and code in {"not_found", "forbidden"}:
        kind = ErrorKind.PERMANENT
    wait_s = None
    if kind is not ErrorKind.PERMANENT:
        wait_s = retry_after_s(headers, facts, now, limited=code in {"rate_limited", "quota_day"})
    message = _WORDS[code].format(status=status, env=target.env, model=target.model)
    # A message about a key may contain parts of it.
    detail = clean(facts.message, target.secret)[:300] if code != "auth" else ""
    detail = f": {detail}" if detail else ""
    if setting := _SETTING_OF.get(facts.param):
        detail += f" (see {target.env}{setting})"
    return unit_error(target, message + detail, kind=kind, code=code, retry_after_s=wait_s)


def reasoning(target: Target, what: str) -> str:
    """Return the message about a model that reasons too long, with the way to turn that off. `what`: such as "spent
    8,192 tokens on reasoning"."""
    return clean(f"provider '{target.provider}' {what}: {_REASONING.format(env=target.env)}", target.secret)


def status_in(error: object) -> int:
    """Return the status that an error names in a reply with status 200, by number or by name; 500 without one."""
    if not isinstance(error, dict):
        return 500
    for named in (error.get("code"), error.get("status"), error.get("type")):
        number = int(named) if isinstance(named, str) and named.isdecimal() and len(named) == 3 else named
        if isinstance(number, int) and 400 <= number <= 599:
            return number
        if isinstance(named, str) and (status := _STATUS_OF.get(named.casefold())):
            return status
    return 500


def classify(status: int, facts: ErrorFacts) -> tuple[ErrorKind, str]:
    """Return (kind, stable code) of an error reply."""
    if status >= 500:
        return ErrorKind.TRANSIENT, "overloaded" if status in _OVERLOADED else "server_error"
    for codes, result in _BY_CODE:
        if facts.codes & codes:
            return result
    if status == 429 and _asks_too_much(facts.message):
        return ErrorKind.PERMANENT, "too_large"
    if status == 429 or (status == 403 and facts.quota_ids):
        return _limit(facts)
    if status < 400:
        return ErrorKind.UNAVAILABLE, "redirect"
    return _BY_STATUS.get(status, (ErrorKind.PERMANENT, "bad_request"))


def _asks_too_much(message: str) -> bool:
    """Whether one request exceeds the limit: "Request too large … Limit 30000, Requested 41217"."""
    match = _REQUESTED.search(message)
    return match is not None and int(match["requested"].replace(",", "")) > int(match["limit"].replace(",", ""))


def _limit(facts: ErrorFacts) -> tuple[ErrorKind, str]:
    if facts.quota_ids:
        daily = any("perday" in quota_id.casefold() for quota_id in facts.quota_ids)
    else:
        daily = bool(_DAILY_WORDS.search(facts.message)) and "per minute" not in facts.message.casefold()
    return (ErrorKind.QUOTA, "quota_day") if daily else (ErrorKind.RATE_LIMITED, "rate_limited")


def clean(text: str, secret: SecretStr) -> str:
    """Return `text` on one line, cut to `MAX_MESSAGE`, without the key, encoded data, and key-like strings."""
    key = secret.get_secret_value().strip()
    if len(key) >= _SHORTEST_KEY:
        text = text.replace(key, "***")
    text = _DATA_LIKE.sub("[data]", _KEY_LIKE.sub("***", text[:_MAX_READ]))
    text = storable(_CONTROLS.sub("", " ".join(text.split())))
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def read_error(body: bytes) -> ErrorFacts:
    """Return the facts in an error's body as OpenAI, Google and other servers write it; any of them may be missing."""
    try:
        data = foreign_json.loads(body)
    except (ValueError, RecursionError):
        return ErrorFacts()
    data = data[0] if isinstance(data, list) and data else data
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return ErrorFacts(message=error[:_MAX_READ] if isinstance(error, str) else "")
    details = [d for d in _items(error.get("details")) if isinstance(d, dict)]
    named = [error.get("code"), error.get("type"), error.get("status"), *(d.get("reason") for d in details)]
    return ErrorFacts(
        message=str(error.get("message") or error.get("detail") or "")[:_MAX_READ],
        codes=frozenset(name.casefold() for name in named if isinstance(name, str)),
        param=param if isinstance(param := error.get("param"), str) else "",
        quota_ids=tuple(_quota_ids(details)),
        retry_delay_s=next((s for d in details if (s := duration_s(d.get("retryDelay"))) is not None), None),
    )


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _quota_ids(details: list[dict[str, object]]) -> Iterator[str]:
    for detail in details:
        for violation in _items(detail.get("violations")):
            if isinstance(violation, dict) and isinstance(quota_id := violation.get("quotaId"), str):
                yield quota_id


def retry_after_s(headers: Mapping[str, str], facts: ErrorFacts, now: datetime, *, limited: bool) -> float | None:
    """Return the seconds that the server asks to wait, from 0 to `MAX_WAIT_S`; None if it does not say. For a used-up
    quota of a day, only the Retry-After headers count.

    `limited`: the call hit a limit. Reset times come with every reply, and count only then.
    """
    daily = any("perday" in quota_id.casefold() for quota_id in facts.quota_ids)
    milliseconds = _number(headers.get("retry-after-ms"))
    waits = [
        None if milliseconds is None else milliseconds / 1000,
        seconds_or_date(headers.get("retry-after"), now),
    ]
    if not daily:
        # Google names seconds even if the day's quota is used up.
        waits.append(facts.retry_delay_s)
    if limited and not daily:
        match = _TRY_AGAIN.search(facts.message)
        waits += [_reset_s(headers, now), duration_s(match[1]) if match else None]
    known = [wait for wait in waits if wait is not None and math.isfinite(wait)]
    return min(max(known[0], 0.0), MAX_WAIT_S) if known else None


def duration_s(value: object) -> float | None:
    """Return the seconds in a text such as "34s", "6m0s", "1h2m3.5s", "120ms" or "34"; None for other texts, and for
    any value that is not a text."""
    if not isinstance(value, str) or not (value := value.strip()):
        return None
    if (number := _number(value)) is not None:
        return number
    match = _DURATION.fullmatch(value)
    if not match:
        return None
    days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds + milliseconds / 1000


def _number(value: str | None) -> float | None:
    try:
        return float(value) if value else None
    except ValueError:
        return None


def _reset_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds until all used-up limits reset; if none is reported as used up, until all limits reset."""
    resets = {
        name.lower().removeprefix("x-ratelimit-reset"): _reset(value, now)
        for name, value in headers.items()
        if name.lower().startswith("x-ratelimit-reset")
    }
    known = {name: wait for name, wait in resets.items() if wait is not None}
    spent = [wait for name, wait in known.items() if headers.get(f"x-ratelimit-remaining{name}") == "0"]
    return max(spent or known.values(), default=None)


def _reset(value: str, now: datetime) -> float | None:
    wait_s = duration_s(value)
    if wait_s is None or wait_s < 1e9:
        return wait_s
    # A time, in seconds or milliseconds since 1970.
    return (wait_s / 1000 if wait_s > 1e12 else wait_s) - now.timestamp()
