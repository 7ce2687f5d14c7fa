"""The gateway of inference nodes, measured: `python -m benchmarks.nodes [--quick] [--only NAME …]`.

Nodes, sessions, instances and Redis are processes of their own; nodes answer at once. Prints a table as it goes, and as
its last line one JSON object with the keys of `AIMS`.
"""

import sys

from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "same_instance_p50_ms": Aim("node and session on one instance: a job, p50", 5, unit="ms"),
    "cross_instance_p50_ms": Aim("node and session on two instances, p50", 15, unit="ms"),
    "jobs_per_s_1": Aim("jobs a second through one instance", unit="/s"),
    "jobs_per_s_2": Aim("jobs a second through two instances", unit="/s"),
    "streams_ratio": Aim("jobs_per_s_1, of bare round trips by Redis Streams"),
    "gateway_1000_nodes_mb": Aim("memory of an instance with 1,000 idle nodes", 150, unit="MB"),
    "recovery_s": Aim("an instance is killed: until the next answer", 5, unit="s"),
}
"""The keys of the last line, in its order."""

PARTS = {
    "latency": Part("node_load.measure_latency", ("same_instance_p50_ms", "cross_instance_p50_ms"), 150, {"jobs": 20}),
    "throughput": Part(
        "node_load.measure_throughput", ("jobs_per_s_1", "jobs_per_s_2", "streams_ratio"), 200, {"seconds": 1.0}
    ),
    "idle": Part("node_load.measure_idle_nodes", ("gateway_1000_nodes_mb",), 150, {"nodes": 50, "settled_s": 1.0}),
    "recovery": Part("node_load.measure_recovery", ("recovery_s",), 150, {"kills": 1}),
}

SUITE = Suite("benchmarks.nodes", "The gateway of inference nodes, measured.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
