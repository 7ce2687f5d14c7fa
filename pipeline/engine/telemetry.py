"""Traces to an OpenTelemetry collector, if OTEL_… variables name one and the extra `otel` is installed; else nothing.

Spans say what was done, for whom and how long it took. They never hold what was asked or answered, nor errors' texts.
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
"""Attributes that OpenTelemetry has a name for; others are `penstock.…`."""
_begun: dict[int, Any] = {}
"""The provider of tracers of each process, by its id: a forked one has to make its own."""


def begin(process: str) -> Any | None:
    """Export traces from this process from now on; what makes tracers, or None if nothing is exported.

    Called in the process itself: threads do not survive a fork. `process`: what it is, such as `api`.
    """
    if os.getpid() in _begun or not wants_traces():
        return _begun.get(os.getpid())
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # an extra
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        log.warning("telemetry.not_installed", install="pip install '.[otel]' in Penstock's folder")
        return None
    own = Resource({"service.name": "penstock", "service.version": version("penstock"), "penstock.process": process})
    made = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
    made.add_span_processor(_without_queries())
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _begun[os.getpid()] = made
    log.info("telemetry.begun", process=process)
    return made


def _without_queries() -> Any:
    """What blanks the query of requests' addresses: it says what somebody looked for."""
    from opentelemetry.sdk.trace import SpanProcessor  # noqa: PLC0415  # an extra

    class WithoutQueries(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002  # the signature is given
            for name in ("url.query", "url.full", "http.url", "http.target"):
                if name in (span.attributes or {}):
                    span.set_attribute(name, "")

    return WithoutQueries()


def end() -> None:
    """Send what is left, and export nothing more from this process."""
    made = _begun.pop(os.getpid(), None)
    if made is not None:
        made.shutdown()


@contextmanager
def span(name: str, **about: str | int) -> Iterator[Note]:
    """A span around what happens inside, with attributes; more can be noted. Costs nothing if nothing is exported."""
    made = _begun.get(os.getpid()) if _begun else None
    if made is None:
        yield _nothing
        return
    tracer = made.get_tracer("penstock")
    # Exceptions stay out of it: their texts may quote documents.
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
