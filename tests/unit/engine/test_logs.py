import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from pipeline.engine.logs import configure, sign

SECRET = "sk-Zq9-very-secret-0123456789"


class Written:
    """Reads the text on standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._read = ""

    def text(self) -> str:
        self._read += self._capsys.readouterr().err
        return self._read

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """Yield a reader of standard error, and restore the logging configuration at the end."""
    root = logging.getLogger()
    before, configured = (root.handlers[:], root.level), structlog.get_config()
    sign(dict)  # drop the worker that another test ran in this process
    yield Written(capsys)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    structlog.configure(**configured)


def test_an_event_is_one_line_of_json_with_its_fields(written: Written) -> None:
    configure("INFO", as_json=True)
    structlog.get_logger("a").info("page.converted", document="d1", page=3, took_ms=812)
    (event,) = written.events()
    timestamp = event.pop("timestamp")
    assert event == {"event": "page.converted", "document": "d1", "page": 3, "took_ms": 812, "level": "info"}
    assert str(timestamp).endswith("Z")


def test_the_standard_library_s_logging_goes_the_same_way(written: Written) -> None:
    configure("INFO", as_json=True)
    logging.getLogger("some.library").warning("%d things", 3)
    (event,) = written.events()
    assert (event["event"], event["level"]) == ("3 things", "warning")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    "field",
    [
        "api_key",
        "API_KEY",
        "key",
        "secret",
        "client_secret",
        "password",
        "db_password",
        "token",
        "access_token",
        "authorization",
        "Authorization",
    ],
)
def test_secrets_are_redacted(written: Written, field: str, as_json: bool) -> None:
    configure("INFO", as_json=as_json)
    structlog.get_logger("a").warning("provider.called", **{field: SECRET}, model="m")
    assert SECRET not in written.text()
    assert "***" in written.text()
    assert field in written.text()


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_inside_other_values_are_redacted_too(written: Written, as_json: bool) -> None:
    configure("INFO", as_json=as_json)
    request = {"headers": {"Authorization": f"Bearer {SECRET}"}, "tries": [{"api_key": SECRET}]}
    structlog.get_logger("a").warning("provider.called", request=request)
    assert SECRET not in written.text()
    assert "Bearer" in str(request), "the caller's own object stays as it is"


def test_secrets_bound_to_a_context_are_redacted(written: Written) -> None:
    configure("INFO", as_json=True)
    with structlog.contextvars.bound_contextvars(api_key=SECRET):
        structlog.get_logger("a").info("provider.called")
    structlog.get_logger("a").bind(password=SECRET).info("provider.called")
    assert SECRET not in written.text()
    assert len(written.events()) == 2


def test_figures_that_only_sound_secret_are_shown(written: Written) -> None:
    configure("INFO", as_json=True)
    structlog.get_logger("a").info("call", input_tokens=12, output_tokens=7, cache_key_hash="abc")
    (event,) = written.events()
    assert (event["input_tokens"], event["output_tokens"], event["cache_key_hash"]) == (12, 7, "abc")


def test_levels_below_the_chosen_one_are_not_written(written: Written) -> None:
    configure("warning", as_json=True)
    structlog.get_logger("a").info("quiet")
    structlog.get_logger("a").warning("loud")
    assert [event["event"] for event in written.events()] == ["loud"]


def test_chatty_libraries_are_quiet(written: Written) -> None:
    configure("DEBUG", as_json=True)
    logging.getLogger("openai").info("HTTP Request")
    logging.getLogger("celery.app.trace").info("Task succeeded")
    assert written.text() == ""


@pytest.mark.parametrize("as_json", [True, False])
def test_an_exception_is_logged_with_its_traceback_and_without_local_variables(written: Written, as_json: bool) -> None:
    configure("INFO", as_json=as_json)

    def fails(secret: str) -> None:
        raise ValueError("it broke")

    try:
        fails(SECRET)
    except ValueError:
        structlog.get_logger("a").exception("page.unexpected_error")
    shown = written.text()
    assert "ValueError: it broke" in shown
    assert "test_logs.py" in shown
    assert SECRET not in shown


def test_configuring_twice_writes_each_event_once(written: Written) -> None:
    configure("INFO", as_json=True)
    configure("INFO", as_json=True)
    structlog.get_logger("a").info("once")
    assert len(written.events()) == 1


def test_foreign_text_in_logs_is_quoted_and_starts_no_line(written: Written) -> None:
    configure("INFO", as_json=False)
    hostile = "a\x1b[2J\x9b\u202e\n2026-01-01T00:00:00Z [info     ] forged"
    structlog.get_logger("a").info(hostile, **{"x": hostile, hostile: [hostile]})
    logging.getLogger("some.library").warning("%s", hostile)
    logging.getLogger("some.library").error("failed", exc_info=ValueError(hostile))
    shown = written.text()
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert "a\\x1b[2J\\x9b\\u202e" in shown
    assert not [line for line in shown.splitlines() if line.startswith("2026-01-01")]
