"""Traces of tasks, if OpenTelemetry is configured, from the start to the end of each process that runs tasks."""

from typing import Any

from celery.signals import worker_init, worker_process_init, worker_process_shutdown, worker_shutdown

from pipeline.engine import telemetry


def begin(process: str) -> bool:
    """Export a span for each task that this process runs or sends; False without a collector, which changes nothing."""
    provider = telemetry.begin(process)
    if provider is None:
        return False
    from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: PLC0415  # an extra

    # Linked, not nested: a lane's message sends the next one, so the whole document would be one endless trace.
    instrumentor = CeleryInstrumentor()  # type: ignore[no-untyped-call]
    if not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument(tracer_provider=provider, use_span_links=True)
    return True


@worker_process_init.connect
def _process(**_: Any) -> None:
    begin("worker")


@worker_init.connect
def _worker(sender: Any, **_: Any) -> None:
    """Start traces in a worker with a pool of threads. A worker that forks must not start them before the fork."""
    if "prefork" not in str(getattr(sender.pool_cls, "__module__", sender.pool_cls)):
        begin("worker")


@worker_process_shutdown.connect
@worker_shutdown.connect
def _end(**_: Any) -> None:
    telemetry.end()
