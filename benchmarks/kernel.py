"""The kernel, measured: `python -m benchmarks.kernel [--postgres] [--quick] [--only NAME …]`.

Prints progress to standard error, a table, and as its last line one JSON object with the keys of `AIMS`. Each part
runs in a process and a data folder of its own, which end with it.
"""

import sys

from benchmarks import documents
from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "claim_p95_ratio": Aim("claims with 1,000,000 rows, of 10,000", 2),
    "claim_late_ratio": Aim("claims late in 20,000 pages, of early ones", 1.5),
    "sweep_ms_1m": Aim("a sweep over 1,000,000 pages", 200, unit="ms"),
    "sweeps_to_find_lost": Aim("sweeps until a lost message is replaced", 2),
    "messages_max": Aim("messages of 100 documents before a closed gate", 400),
    "quota_used": Aim("use of 10 calls a second", 0.97, at_least=True),
    "rejections": Aim("calls that drew a 429", 0),
    "small_job_s": Aim("3 calls beside hundreds, p95 of 20 such jobs", 1.2, unit="s"),
    "fifo_violations": Aim("calls out of the order of their messages", 0),
    "redis_commands_per_s": Aim("a worker before a full gate", 60),
    "units_vs_chord_quantum": documents.AIMS["units_vs_chord_quantum"],
    "units_vs_chord_single": documents.AIMS["units_vs_chord_single"],
    "idle_cpu": Aim("the embedded stack doing nothing, of a core", 1, unit="%"),
}
"""The keys of the last line, in its order."""

PARTS = {
    "claims": Part(
        "kernel_rows.measure_claims",
        ("claim_p95_ratio", "claim_late_ratio"),
        300,
        {"claims": 20, "long": 500, "documents": 500},
    ),
    "sweep": Part(
        "kernel_rows.measure_sweep", ("sweep_ms_1m", "sweeps_to_find_lost"), 240, {"sweeps": 1, "documents": 500}
    ),
    "messages": Part("kernel_rows.measure_messages", ("messages_max",), 120, {"documents": 5, "sweeps": 3}),
    "quota": Part("quota.measure_gates", ("quota_used", "rejections", "small_job_s"), 150, {"calls": 60, "jobs": 1}),
    "order": Part("kernel_gate.measure_order", ("fifo_violations",), 120, {"messages": 30}),
    "waiting": Part("kernel_gate.measure_waiting", ("redis_commands_per_s",), 120, {"window_s": 2}),
    "units": Part(
        "units.measure", ("units_vs_chord_quantum", "units_vs_chord_single"), 180, {"units": 300, "rounds": 1}
    ),
    "idle": Part("embedded.measure_rest_with_provider", ("idle_cpu",), 180, {"window_s": 2, "settled_s": 1}),
}


SUITE = Suite("benchmarks.kernel", "The kernel, measured.", AIMS, PARTS, postgres=True)

if __name__ == "__main__":
    sys.exit(SUITE.main())
