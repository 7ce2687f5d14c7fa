"""All of a worker's configuration: broker, queues, routes, beat schedule. See docs/explanation/architecture.md."""

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
"""Given whole: kombu takes `rediss://` alone for encryption without verifying anything."""
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
"""A queue that no worker knows would hold its messages for ever: better an error where the message is sent."""
task_routes = {
    "documents.split": {"queue": "cpu"},
    "documents.lane": {"queue": "cpu"},
    "knowledge.read": {"queue": "io"},
    "maintenance.*": {"queue": "maintenance"},
    "*.wake": {"queue": "maintenance"},
    "screenshots.tick": {"queue": "maintenance"},
}
"""Lanes name their queue themselves; everything else is short and goes to `control`. `maintenance`, which every worker
consumes, is for what recovers work: it must not wait behind that work."""

accept_content = ["json"]
task_serializer = "json"
result_serializer = "json"
enable_utc = True
timezone = "UTC"

task_acks_late = True
task_reject_on_worker_lost = True
"""Bounded by the attempts on the rows: a message that comes again first gives back what it held."""
task_track_started = False
worker_send_task_events = task_send_sent_event = _settings.worker_events
"""Monitors see messages from when they are sent, so also those that wait."""
worker_prefetch_multiplier = 1
worker_cancel_long_running_tasks_on_connection_loss = False
"""What runs goes on while the broker is away: its result is committed to the database, fenced by its claim, so that a
second delivery finds nothing to do. Cancelling would throw away calls that are paid for."""
worker_soft_shutdown_timeout = 5.0
worker_hijack_root_logger = False
worker_proc_alive_timeout = 60.0
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
result_backend_always_retry = True
result_expires = timedelta(hours=1)
"""Nobody reads results: the rows have them. Only chords count theirs."""
result_chord_expires = timedelta(days=7)
result_chord_retry_interval = 1.0

# Longer than the longest task: a shorter one would deliver messages a second time while they are worked on.
_visibility = {"visibility_timeout": 7200}
_sentinels = sentinel_options(_settings.redis)
broker_transport_options = {
    **_visibility,
    **_sentinels,
    # Each time, not each tenth. What came to its time-out, after two hours, is restored within half a minute: workers
    # need not ask more often, for what a dead one held is moved by the sweeper long before.
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
"""kB: a process that has grown too large is replaced after its task."""

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def _steady() -> datetime:
    """Beat's time: monotonic, so changes of the host's clock do not move it."""
    return _LONG_AGO + timedelta(days=365, seconds=time.monotonic())


def _every(interval: float | timedelta, task: str) -> dict[str, Any]:
    # Without `expires`: beat sets it by its own clock, and a worker compares it with another. The worker skips ticks
    # that follow the last one too soon, by Redis's clock (`maintenance.take_tick`).
    # Every task is due when beat starts: a beat that restarts every half hour would never run an hourly task otherwise.
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
"""Keeps nothing on disk: Celery's own default unpickles a file, which whoever may write to the folder would choose."""
