"""The gateway of inference nodes, measured: `python -m benchmarks.nodes [--quick] [--only NAME …]`.

Nodes, sessions, instances and Redis are processes of their own; nodes answer at once. Prints a table as it goes, and as
its last line one JSON object with the keys of `AIMS`.
"""

import sys

from benchmarks.report import Aim
from benchmarks.suite import Part, Suite

AIMS = {
    "same_instance_p50_ms": Aim("node and session on one instance: a job, p50", 5, at_least=False, unit="ms"),
    "cross_instance_p50_ms": Aim("node and session on two instances, p50", 15, at_least=False, unit="ms"),
    "jobs_per_s_1": Aim("jobs a second through one instance", 0, at_least=True, unit="/s"),
    "jobs_per_s_2": Aim("jobs a second through two instances", 0, at_least=True, unit="/s"),
    "streams_ratio": Aim("jobs_per_s_1, of bare round trips by Redis Streams", 0, at_least=True),
    "gateway_1000_nodes_mb": Aim("memory of an instance with 1,000 idle nodes", 150, at_least=False, unit="MB"),
    "recovery_s": Aim("an instance is killed: until the next answer", 5, at_least=False, unit="s"),
}
"""The keys of the last line, in its order. Where 0 stands, no aim was set."""

PARTS = {
    "latency": Part("node_load.measure_latency", ("same_instance_p50_ms", "cross_instance_p50_ms"), 60, {"jobs": 50}),
    "throughput": Part(
        "node_load.measure_throughput", ("jobs_per_s_1", "jobs_per_s_2", "streams_ratio"), 90, {"seconds": 2.0}
    ),
    "idle": Part("node_load.measure_idle_nodes", ("gateway_1000_nodes_mb",), 60, {"nodes": 100}),
    "recovery": Part("node_load.measure_recovery", ("recovery_s",), 80, {"kills": 1}),
}


if __name__ == "__main__":
    sys.exit(Suite("benchmarks.nodes", "The gateway of inference nodes, measured.", AIMS, PARTS).main())
