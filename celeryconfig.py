"""The configuration of workers and beat: broker, queues, routes, schedule. See docs/explanation/architecture.md."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import schedule
from kombu.entity import Exchange, Queue

from pipeline.engine.connection import CONNECT_TIMEOUT_S, TIMEOUT_S, sentinel_options
from pipeline.engine.full_redis import RedisFull
from pipeline.flows import FLOWS, check_sections, gate_registry
from pipeline.nodes.settings import gateway_settings
from pipeline.settings import get_settings

_settings = get_settings()
check_sections(_settings)
_tend_nodes_s = gateway_settings(_settings).dlq_scan_interval_ms / 1000

broker_url = _settings.broker_url
result_backend = _settings.broker_url
broker_use_ssl = redis_backend_use_ssl = dict(_settings.redis.tls) or None
"""All TLS options: from `rediss://` alone, kombu encrypts without verification."""
redis_socket_timeout = TIMEOUT_S
redis_socket_connect_timeout = CONNECT_TIMEOUT_S
worker_consumer = "tasks.consumer:GateConsumer"
imports = (
    *(f"tasks.{name}.canvas" for name in FLOWS),
    "tasks.maintenance",
    "tasks.nodes",
    "tasks.presence",
    "tasks.telemetry",
    "tasks.watchdog",
)

task_queues = tuple(Queue(name, Exchange(name), routing_key=name) for name in gate_registry(_settings).names)
task_default_queue = "control"
task_create_missing_queues = False
"""Messages in a queue that no worker knows would stay there for ever: raise an error when they are sent."""
task_routes = {
    "documents.split": {"queue": "cpu"},
    "documents.lane": {"queue": "cpu"},
    "knowledge.read": {"queue": "io"},
    "maintenance.*": {"queue": "maintenance"},
    "*.wake": {"queue": "maintenance"},
    "screenshots.tick": {"queue": "maintenance"},
}
"""Lanes name their queues; other tasks are short and go to `control`. `maintenance`, which all workers consume, is for
tasks that recover work: they must not wait behind that work."""

accept_content = ["json"]
task_serializer = "json"
result_serializer = "json"
enable_utc = True
timezone = "UTC"

task_acks_late = True
task_reject_on_worker_lost = True
"""The attempts on the rows bound this: a redelivered message first gives back the claims of its first delivery."""
task_track_started = False
worker_send_task_events = task_send_sent_event = _settings.worker_events
"""Monitors see messages from their sending on, so also waiting ones."""
worker_prefetch_multiplier = 1
worker_cancel_long_running_tasks_on_connection_loss = False
"""Running tasks continue while the broker is unreachable: they commit results to the database under their claims, so a
second delivery finds no work. Cancelling would waste paid calls."""
worker_soft_shutdown_timeout = 5.0
worker_hijack_root_logger = False
worker_proc_alive_timeout = 60.0
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
result_backend_always_retry = True
result_expires = timedelta(hours=1)
"""No code reads results: the rows hold them. Only chords count their parts."""
result_chord_expires = timedelta(days=7)
result_chord_retry_interval = 1.0

# Longer than the longest task: otherwise the broker would redeliver messages during their work.
_visibility = {"visibility_timeout": 7200}
_sentinels = sentinel_options(_settings.redis)
broker_transport_options = {
    **_visibility,
    **_sentinels,
    # Every time, not every tenth. Restores messages within half a minute of their time-out of two hours. More often is
    # not needed: the sweep launches the work of dead workers long before.
    "unacked_restore_interval": 30,
    "unacked_restore_throttle": 1,
    "socket_keepalive": True,
    "socket_timeout": TIMEOUT_S,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "health_check_interval": 10,
}
result_backend_transport_options = {
    **_visibility,
    **_sentinels,
    "result_chord_ordered": True,
    "additional_connection_errors": (RedisFull,),
}
task_time_limit = 3600

worker_max_memory_per_child = 1_500_000
"""In kB: a larger process is replaced after its task."""

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def _steady() -> datetime:
    """Beat's time: monotonic, so changes of the host's clock do not move it."""
    return _LONG_AGO + timedelta(days=365, seconds=time.monotonic())


def _every(interval: float | timedelta, task: str) -> dict[str, Any]:
    # Without `expires`: beat sets it by its own clock, and a worker compares it with its own. The worker skips ticks
    # that follow each other too soon, by Redis's clock (`maintenance.take_tick`).
    # Every task is due when beat starts: otherwise a beat that restarts every half hour would never run an hourly task.
    return {"task": task, "schedule": schedule(interval, nowfun=_steady), "last_run_at": _LONG_AGO}


beat_schedule = {
    "sweep": _every(_settings.sweep_interval_s, "maintenance.sweep"),
    "watchdog": _every(_settings.watchdog_interval_s, "maintenance.watchdog"),
    "fail-unserved": _every(60.0, "maintenance.fail_unserved"),
    "catch-up": _every(60.0, "maintenance.catch_up"),
    "tend-nodes": _every(_tend_nodes_s, "maintenance.tend_nodes"),
    "clean-up": _every(timedelta(hours=1), "maintenance.clean_up"),
}
if _settings.screenshots.capture_sources:
    beat_schedule["capture"] = _every(_settings.screenshots.capture_interval_s, "screenshots.tick")
beat_scheduler = "celery.beat:Scheduler"
"""Stores nothing on disk: Celery's default unpickles a file, which any user with write access could replace."""
