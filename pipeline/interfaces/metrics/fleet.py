"""Metrics of inference nodes, of all the gateway's instances together. Each instance serves its own metrics itself."""

from prometheus_client.metrics_core import Metric

from pipeline.engine.metric_family import Counter, Gauge
from pipeline.nodes import service
from pipeline.nodes.protocol import Capability
from pipeline.storage.context import Context

_PATIENCE_S = 5.0


def families(context: Context) -> list[Metric]:
    """All metrics of nodes; none before the first token exists. Raises `RedisError`."""
    if not service.is_used(context):
        return []
    fleet = service.status(context, _PATIENCE_S)
    instances = Gauge(
        "penstock_gateway_instances",
        "Live instances of the gateway. The metrics of the gateway exist once a token exists.",
    )
    instances.put((), sum(instance.alive for instance in fleet.instances))
    sessions = Gauge("penstock_gateway_sessions", "Connected sessions.")
    sessions.put((), fleet.sessions)
    nodes = Gauge("penstock_gateway_nodes", "Inference nodes: `connected`, `draining` or `gone`.", labels=["state"])
    for status, count in fleet.nodes.items():
        nodes.put((status,), count)
    slots = Gauge("penstock_gateway_slots", "Jobs that the connected nodes can run at once.")
    slots.put((), fleet.slots)
    used = Gauge("penstock_gateway_slots_used", "Jobs that the connected nodes run.")
    used.put((), fleet.used)
    jobs = Gauge(
        "penstock_gateway_jobs",
        "Jobs of inference nodes, by state: docs/how-to/nodes.md#how-a-job-moves.",
        labels=["state"],
    )
    for state, count in fleet.jobs.items():
        jobs.put((state,), count)
    waiting = Gauge("penstock_gateway_waiting", "Jobs that wait in line for a slot.", labels=["capability"])
    for capability in Capability:  # never by model: callers choose models' names
        in_line = sum(count for pool, count in fleet.waiting.items() if pool.partition(":")[0] == capability)
        waiting.put((capability,), in_line)
    messages = Gauge("penstock_gateway_inbox_messages", "Messages in all inboxes, those of dead instances included.")
    messages.put((), fleet.inbox_messages)
    letters = Gauge("penstock_gateway_dlq_messages", "Dead letters that wait for an operator.")
    letters.put((), fleet.dead_letters)
    moved = Counter("penstock_gateway_dlq_moved", "Messages that have become dead letters.")
    moved.put((), fleet.dead_letters_moved)
    return [instances, sessions, nodes, slots, used, jobs, waiting, messages, letters, moved]
