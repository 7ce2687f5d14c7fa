import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers.errors import MAX_MESSAGE, MAX_WAIT_S, Target, clean, duration_s, from_exception, from_reply

KEY = "sk-very-secret-0123456789"
TARGET = Target(provider="x", model="m-1", timeout_s=12, secret=SecretStr(KEY))
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def error(status: int, body: Any = "", **headers: str) -> UnitError:
    data = body if isinstance(body, str) else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return from_reply(status, named, data.encode(), TARGET, NOW)


def google(*quota_ids: str, delay: str = "34s") -> dict[str, Any]:
    violations = [{"quotaMetric": "m", "quotaId": quota_id} for quota_id in quota_ids]
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    message = "You exceeded your current quota. Please retry in 34s."
    return {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": message, "details": details}}


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (301, ErrorKind.UNAVAILABLE, "redirect"),
        (400, ErrorKind.PERMANENT, "bad_request"),
        (401, ErrorKind.UNAVAILABLE, "auth"),
        (402, ErrorKind.UNAVAILABLE, "no_credit"),
        (403, ErrorKind.UNAVAILABLE, "forbidden"),
        (404, ErrorKind.UNAVAILABLE, "not_found"),
        (408, ErrorKind.TRANSIENT, "timeout"),
        (409, ErrorKind.TRANSIENT, "busy"),
        (413, ErrorKind.PERMANENT, "too_large"),
        (418, ErrorKind.PERMANENT, "bad_request"),
        (422, ErrorKind.PERMANENT, "bad_request"),
        (425, ErrorKind.TRANSIENT, "busy"),
        (429, ErrorKind.RATE_LIMITED, "rate_limited"),
        (500, ErrorKind.TRANSIENT, "server_error"),
        (503, ErrorKind.TRANSIENT, "overloaded"),
        (529, ErrorKind.TRANSIENT, "overloaded"),
    ],
)
def test_a_status_without_a_body_decides_kind_and_code(status: int, kind: ErrorKind, code: str) -> None:
    failure = error(status)
    assert (failure.kind, failure.code) == (kind, code)
    assert f"({status})" in str(failure)


def test_a_refused_key_names_the_setting_to_check() -> None:
    assert str(error(401)) == "provider 'x' refused the key (401): check PENSTOCK_PROVIDERS__X__API_KEY"


def test_an_unknown_model_names_the_model_and_the_settings_to_check() -> None:
    message = str(error(404))
    assert "'m-1'" in message
    assert "PENSTOCK_PROVIDERS__X__MODEL" in message
    assert "PENSTOCK_PROVIDERS__X__BASE_URL" in message


def test_a_parameter_that_the_model_cannot_take_names_its_setting() -> None:
    body = {"error": {"message": "Unsupported value", "param": "temperature", "code": "unsupported_value"}}
    assert "PENSTOCK_PROVIDERS__X__TEMPERATURE" in str(error(400, body))


def test_a_wrong_key_reported_as_bad_request_is_still_about_the_key() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    assert error(400, [{"error": {"code": 400, "message": "API key not valid", "details": details}}]).code == "auth"


@pytest.mark.parametrize(
    ("code", "word"),
    [("context_length_exceeded", "too_large"), ("content_policy_violation", "refused"), ("other", "bad_request")],
)
def test_the_code_of_a_bad_request_distinguishes_its_causes(code: str, word: str) -> None:
    failure = error(400, {"error": {"message": "no", "code": code}})
    assert (failure.kind, failure.code) == (ErrorKind.PERMANENT, word)


@pytest.mark.parametrize("name", ["code", "type"])
def test_an_empty_account_is_neither_a_quota_of_the_day_nor_a_rate_limit(name: str) -> None:
    body = {"error": {"message": "You exceeded your current quota", name: "insufficient_quota"}}
    failure = error(429, body, x_ratelimit_reset_requests="1s")
    assert (failure.kind, failure.code, failure.retry_after_s) == (ErrorKind.UNAVAILABLE, "no_credit", None)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 41217.", ErrorKind.PERMANENT),
        ("Rate limit reached on tokens (TPM): Limit 30000, Used 29000, Requested 2217.", ErrorKind.RATE_LIMITED),
        ("Limit: 8,000, Requested: 8,001", ErrorKind.PERMANENT),
    ],
)
def test_a_request_larger_than_the_limit_is_at_fault_itself(message: str, kind: ErrorKind) -> None:
    failure = error(429, {"error": {"message": message, "code": "rate_limit_exceeded"}})
    assert failure.kind is kind
    assert (failure.code == "too_large") == (kind is ErrorKind.PERMANENT)


def test_an_unknown_model_that_a_user_chose_is_the_page_s_own_failure() -> None:
    chosen = replace(TARGET, is_own_model=True)
    assert from_reply(404, {}, b"", chosen, NOW).kind is ErrorKind.PERMANENT
    assert from_reply(401, {}, b"", chosen, NOW).kind is ErrorKind.UNAVAILABLE


def test_quota_exceeded_per_minute_is_a_rate_limit_whatever_its_words() -> None:
    failure = error(429, google("GenerateRequestsPerMinutePerProjectPerModel"))
    assert (failure.kind, failure.code, failure.retry_after_s) == (ErrorKind.RATE_LIMITED, "rate_limited", 34)


def test_quota_exceeded_per_day_is_a_days_quota_and_its_short_retry_delay_is_not_believed() -> None:
    failure = error(429, google("RequestsPerMinute", "GenerateRequestsPerDayPerProjectPerModel-FreeTier"))
    assert (failure.kind, failure.code, failure.retry_after_s) == (ErrorKind.QUOTA, "quota_day", None)


def test_googles_errors_are_read_inside_a_list_too() -> None:
    assert error(429, [google("RequestsPerDay")]).code == "quota_day"


def test_words_about_a_day_count_without_structured_details() -> None:
    message = "Rate limit reached on requests per day (RPD): Limit 200. Please try again in 7m12s."
    failure = error(429, {"error": {"message": message, "code": "rate_limit_exceeded"}})
    assert (failure.kind, failure.code, failure.retry_after_s) == (ErrorKind.QUOTA, "quota_day", 432)


def test_the_words_quota_exceeded_alone_make_no_quota() -> None:
    assert error(429, {"error": {"message": "Quota exceeded for requests per minute"}}).code == "rate_limited"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after": "-3"}, 0),
        ({"retry_after": "Sun, 01 Mar 2026 12:00:30 GMT"}, 30),
        ({"retry_after": "Sun, 01 Mar 2026 11:00:00 GMT"}, 0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "1e30"}, MAX_WAIT_S),
        ({"retry_after_ms": "1500", "retry_after": "9"}, 1.5),
        ({"x_ratelimit_reset_requests": "1s", "x_ratelimit_reset_tokens": "6m0s"}, 360),
        (
            {
                "x_ratelimit_reset_requests": "120ms",
                "x_ratelimit_remaining_requests": "0",
                "x_ratelimit_reset_tokens": "6m0s",
                "x_ratelimit_remaining_tokens": "9",
            },
            0.12,
        ),
        ({"x_ratelimit_reset": str(int(NOW.timestamp()) + 20)}, 20),
        ({"x_ratelimit_reset": str(int(NOW.timestamp() + 20) * 1000)}, 20),
        ({"retry_after": "3", "x_ratelimit_reset_tokens": "6m0s"}, 3),
        ({}, None),
    ],
)
def test_the_wait_a_server_asks_for_is_read_from_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert error(429, **headers).retry_after_s == seconds


def test_a_failing_server_is_retried_after_its_retry_after_and_reset_times_are_ignored() -> None:
    assert error(503, retry_after="5").retry_after_s == 5
    assert error(500, x_ratelimit_reset_requests="6m0s").retry_after_s is None


def test_a_permanent_error_asks_for_no_wait() -> None:
    assert error(400, retry_after="5").retry_after_s is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("34s", 34), ("1.5s", 1.5), ("6m0s", 360), ("1h2m3s", 3723), ("1d", 86400), ("20ms", 0.02), ("8", 8)],
)
def test_durations_are_read_in_every_form_that_providers_use(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 minutes", "s", None, {"seconds": 3}])
def test_an_invalid_duration_is_none(text: object) -> None:
    assert duration_s(text) is None


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>",
        "[]",
        "[1]",
        "null",
        '"text"',
        '{"error": null}',
        '{"error": "plain"}',
        '{"error": {"details": 3}}',
        '{"error": {"details": [1, {"violations": [2, {"quotaId": 3}]}]}}',
        '{"detail": [{"loc": ["body"]}]}',
        "[" * 9000,
    ],
)
def test_odd_bodies_never_hide_the_status(body: str) -> None:
    assert error(429, body).code == "rate_limited"


def test_messages_hold_neither_key_nor_picture_and_are_cut() -> None:
    picture = "QUJD" * 400
    texts = (
        f"Bad key {KEY}, sk-other-abcdefgh, Authorization: Bearer abc.def in data:image/png;base64,{picture} "
        + "so " * 400
    )
    message = str(error(400, {"error": {"message": texts}}))
    for secret in (KEY, "sk-other", "abc.def", "QUJDQUJD"):
        assert secret not in message
    assert len(message) <= MAX_MESSAGE


def test_a_key_cut_off_at_the_end_of_a_long_message_does_not_show_its_beginning() -> None:
    odd_key = "Zx9 plain!words?0123456789"
    target = Target("x", "m", 1, SecretStr(odd_key))
    body = json.dumps({"error": {"message": "a " * 145 + odd_key}}).encode()
    assert odd_key[:8] not in str(from_reply(400, {}, body, target, NOW))


def test_the_error_of_a_refused_key_contains_nothing_of_the_key() -> None:
    assert "sk-ve" not in str(error(401, {"error": {"message": "Incorrect API key provided: sk-ve***789"}}))


def test_cleaning_keeps_ordinary_words() -> None:
    assert clean("the keyboard has a task:\n risk-free", SecretStr("")) == "the keyboard has a task: risk-free"


def test_a_call_that_reached_its_limit_is_transient_and_says_the_limit() -> None:
    failure = from_exception(TimeoutError(), TARGET, NOW)
    assert (failure.kind, failure.code) == (ErrorKind.TRANSIENT, "timeout")
    assert "12 s" in str(failure)


def test_a_placeholder_for_a_key_is_not_masked_in_ordinary_words() -> None:
    assert clean("check the key", SecretStr("k")) == "check the key"
    assert clean("check 12345678", SecretStr("12345678")) == "check ***"
