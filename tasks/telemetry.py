"""Traces of tasks, where OpenTelemetry is wanted: begun in each process that runs tasks, and ended with it."""

from typing import Any

from celery.signals import worker_init, worker_process_init, worker_process_shutdown, worker_shutdown

from pipeline.engine import telemetry


def begin(process: str) -> bool:
    """Export a span for each task that this process runs or sends; whether that is so."""
    made = telemetry.begin(process)
    if made is None:
        return False
    from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: PLC0415  # an extra

    # Linked, not nested: a lane's message sends the next one, so a document would be one trace without an end.
    instrumentor = CeleryInstrumentor()  # type: ignore[no-untyped-call]
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument(tracer_provider=made, use_span_links=True)
    return True


@worker_process_init.connect
def _process(**_: Any) -> None:
    begin("worker")


@worker_init.connect
def _worker(sender: Any, **_: Any) -> None:
    """A pool of threads has no processes of its own. One that forks must not have begun before."""
    if "prefork" not in str(getattr(sender.pool_cls, "__module__", sender.pool_cls)):
        begin("worker")


@worker_process_shutdown.connect
@worker_shutdown.connect
def _end(**_: Any) -> None:
    telemetry.end()
