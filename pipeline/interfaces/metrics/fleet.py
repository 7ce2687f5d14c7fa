"""Metrics of inference nodes, of all instances of the gateway together. What one alone knows, it tells itself."""

from prometheus_client.metrics_core import Metric

from pipeline.engine.metric_family import Counter, Gauge
from pipeline.nodes import service
from pipeline.nodes.protocol import Capability
from pipeline.storage.context import Context

_PATIENCE_S = 5.0


def families(context: Context) -> list[Metric]:
    """All of them; none where nobody ever made a token. Raises `RedisError`."""
    if not service.is_used(context):
        return []
    found = service.status(context, _PATIENCE_S)
    instances = Gauge("penstock_gateway_instances", "Instances of the gateway that live.")
    instances.put((), sum(one.alive for one in found.instances))
    sessions = Gauge("penstock_gateway_sessions", "Sessions that are connected.")
    sessions.put((), found.sessions)
    nodes = Gauge("penstock_gateway_nodes", "Inference nodes, by whether they work.", labels=["state"])
    for status, count in found.nodes.items():
        nodes.put((status,), count)
    slots = Gauge("penstock_gateway_slots", "Jobs that the nodes that are connected could do at once.")
    slots.put((), found.slots)
    used = Gauge("penstock_gateway_slots_used", "Of these, how many they do.")
    used.put((), found.used)
    jobs = Gauge("penstock_gateway_jobs", "Jobs of inference nodes that are known, by state.", labels=["state"])
    for state, count in found.jobs.items():
        jobs.put((state,), count)
    waiting = Gauge("penstock_gateway_waiting", "Jobs in line for a slot.", labels=["capability"])
    for capability in Capability:  # models' names are given by callers
        in_line = sum(count for pool, count in found.waiting.items() if pool.partition(":")[0] == capability)
        waiting.put((capability,), in_line)
    messages = Gauge("penstock_gateway_inbox_messages", "Messages in all inboxes, also of instances that are gone.")
    messages.put((), found.inbox_messages)
    letters = Gauge("penstock_gateway_dlq_messages", "Dead letters that wait for an operator.")
    letters.put((), found.dead_letters)
    moved = Counter("penstock_gateway_dlq_moved", "Messages that have become dead letters.")
    moved.put((), found.dead_letters_moved)
    return [instances, sessions, nodes, slots, used, jobs, waiting, messages, letters, moved]
