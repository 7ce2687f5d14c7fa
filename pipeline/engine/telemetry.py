"""Traces to an OpenTelemetry collector, if OTEL_… variables name one and the extra `otel` is installed.

Spans record operations, their subjects and durations. They never hold requests, answers or the texts of errors.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import structlog

from pipeline.settings.environment import wants_traces

log = structlog.get_logger(__name__)
Note = Callable[..., None]
"""Adds attributes to a span; `failed` is the kind of an error."""
_MAX_CHARS = 120
_NAMES = {
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.response.model",
    "failed": "error.type",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
"""Attributes with a name in OpenTelemetry; others are `penstock.…`."""
_providers: dict[int, Any] = {}
"""The provider of tracers by process id: a forked process must create its own."""


def begin(process: str) -> Any | None:
    """Start to export traces from this process; return the provider of tracers, or None without a collector or the
    extra `otel`.

    Call it in the process itself: threads do not survive a fork. `process`: its role, such as `api`.
    """
    if os.getpid() in _providers or not wants_traces():
        return _providers.get(os.getpid())
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # an extra
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        log.warning("telemetry.not_installed", install="pip install '.[otel]' in Penstock's folder")
        return None
    own = Resource({"service.name": "penstock", "service.version": version("penstock"), "penstock.process": process})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(_without_queries())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _providers[os.getpid()] = provider
    log.info("telemetry.begun", process=process)
    return provider


def _without_queries() -> Any:
    """A processor that blanks the queries of requests' addresses, because they hold search words."""
    from opentelemetry.sdk.trace import SpanProcessor  # noqa: PLC0415  # an extra

    class WithoutQueries(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the signature is given
            for name in ("url.query", "url.full", "http.url", "http.target"):
                if name in (span.attributes or {}):
                    span.set_attribute(name, "")

    return WithoutQueries()


def end() -> None:
    """Send the remaining spans, and stop to export from this process."""
    provider = _providers.pop(os.getpid(), None)
    if provider is not None:
        provider.shutdown()


@contextmanager
def span(name: str, **about: str | int) -> Iterator[Note]:
    """Run the body in a span with attributes; the yielded function adds more, and its attribute `failed` marks the span
    as an error. Does nothing without a collector."""
    provider = _providers.get(os.getpid()) if _providers else None
    if provider is None:
        yield _nothing
        return
    tracer = provider.get_tracer("penstock")
    # Record no exceptions: their texts may quote documents.
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as current:

        def note(**more: str | int) -> None:
            for key, value in more.items():
                short = value[:_MAX_CHARS] if isinstance(value, str) else value
                current.set_attribute(_NAMES.get(key, f"penstock.{key}"), short)
            if "failed" in more:
                from opentelemetry.trace import StatusCode  # noqa: PLC0415  # an extra

                current.set_status(StatusCode.ERROR)

        note(**about)
        yield note


def _nothing(**_: str | int) -> None:
    pass
