"""Logs are events with fields, one line each, for people or as JSON, and without secrets."""

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from io import StringIO
from typing import Any, TextIO

import structlog

from pipeline.engine.control_characters import printable, printable_line

_SECRET = ("key", "secret", "password", "token", "authorization")
_NOT_SECRET = ("_tokens", "_key_hash")


_signature: list[Callable[[], Mapping[str, str]]] = []


def sign(fields: Callable[[], Mapping[str, str]]) -> None:
    """Add the fields that `fields` returns, which name the writer, to every line of this process and of its forks;
    replaces those of an earlier call."""
    _signature[:] = [fields]


_BEHIND_COMMANDS = ("pipeline.engine", "pipeline.providers", "pipeline.storage", "tasks")
"""Loggers of code whose events commands report in their own sentences."""


def configure(level: str, *, as_json: bool, for_command: bool = False) -> None:
    """Send structlog and the standard library's logging through one handler on standard error.

    `for_command`: log only errors of engine, providers, storage and tasks, because the command reports their events in
    its own sentences.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _sign,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _redact,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_write_traceback, pad_event_to=24
        )
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info if as_json else _harmless,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _BEHIND_COMMANDS:
        logging.getLogger(name).setLevel(logging.ERROR if for_command else logging.NOTSET)
    # One line for each message that arrives or ends would bury the lines about documents and pages.
    for chatty in (
        "celery.worker.strategy",
        "celery.app.trace",
        "httpx2",
        "httpcore",
        "openai",
        "PIL",
        "alembic",
        "celery.beat",
        "mcp",
        "uvicorn",
    ):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def configure_as_library() -> None:
    """Pass events to the standard library's logging, so that the importing program decides whether to show them.

    Does nothing if logging is configured. Otherwise structlog would print to the program's standard output.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                _redact,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


def _harmless(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape the parts that the renderer shows unchanged. It quotes the values of fields itself."""
    shown = {printable_line(field): value for field, value in event.items()}
    return shown | {"event": _below(str(event.get("event", "")))}


def _write_traceback(sio: TextIO, exc_info: Any) -> None:
    written = StringIO()
    structlog.dev.plain_traceback(written, exc_info)
    sio.write(_below(written.getvalue()))


def _below(text: str) -> str:
    """Indent all lines but the first, so that foreign text never looks like a line of the log."""
    return printable(text).replace("\n", "\n    ")


def _sign(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for fields in _signature:
        for field, value in fields().items():
            event.setdefault(field, value)
    return event


def _redact(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for field, value in event.items():
        event[field] = "***" if _is_secret(field) else _redacted(value)
    return event


def _redacted(value: Any) -> Any:
    """Copy nested mappings and lists without secrets; return other values unchanged."""
    if isinstance(value, dict):
        return {name: "***" if _is_secret(str(name)) else _redacted(inner) for name, inner in value.items()}
    return [_redacted(inner) for inner in value] if isinstance(value, list) else value


def _is_secret(field: str) -> bool:
    name = field.lower()
    return any(word in name for word in _SECRET) and not name.endswith(_NOT_SECRET)
