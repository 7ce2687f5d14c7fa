"""A rate-limited provider, measured: `python -m benchmarks.limits [--quick] [--only NAME …]`.

Prints progress to standard error, a table, and as its last line one JSON object with the keys of `AIMS`. Each part
runs in a process and a data folder of its own, which end with it.
"""

import sys

from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "quota_used": Aim("use of 10 calls a second", 0.97, at_least=True),
    "rejections": Aim("calls that drew a 429", 0),
    "small_job_s": Aim("3 calls beside hundreds", 1.5, unit="s"),
    "plain_quota_used": Aim("plain Celery tasks: use of 10 calls a second"),
    "plain_rejections": Aim("plain Celery tasks: calls that drew a 429"),
    "plain_small_job_s": Aim("plain Celery tasks: 3 calls beside hundreds", unit="s"),
    "admission_ms": Aim("one admission in a window of 1,000", 1, unit="ms"),
}
"""The keys of the last line, in its order."""

PARTS = {
    "gates": Part("quota.measure_gates", ("quota_used", "rejections", "small_job_s"), 150, {"calls": 60}),
    "plain": Part(
        "quota.measure_plain", ("plain_quota_used", "plain_rejections", "plain_small_job_s"), 300, {"calls": 25}
    ),
    "admissions": Part(
        "quota.measure_admissions", ("admission_ms",), 120, {"window": 2_000, "times": 100, "at_once": (2,)}
    ),
}

SUITE = Suite("benchmarks.limits", "A rate-limited provider, measured.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
