"""Knowledge bases and the REST API, measured: `python -m benchmarks.knowledge [--quick] [--only NAME …]`.

Prints progress to standard error, a table, and as its last line one JSON object with the keys of `AIMS`. Each part
runs in a process and a data folder of its own, which end with it.
"""

import sys

from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "items_ratio": Aim("items a second, of a bare loop over the same parts", 0.8, at_least=True),
    "jain": Aim("Jain index of service over ten equal bases, the lowest", 0.95, at_least=True),
    "small_base_ratio": Aim("5 items beside 500 of another base, of alone", 2),
    "search_p95_ms": Aim("search over 100,000 chunks of a base, p95", 100, unit="ms"),
    "search_200_bases_p95_ms": Aim("search over 200 bases at once, p95", 100, unit="ms"),
    "api_rps": Aim("reads of an item's status, one API process", 300, at_least=True, unit="/s"),
    "api_p99_ms": Aim("the same while workers are busy, p99", 100, unit="ms"),
    "upload_peak_mb": Aim("the API's memory for an upload of 500 MB", 50, unit="MB"),
    "export_peak_mb": Aim("the same for three exports at once of 10 MB of short paragraphs", 128, unit="MB"),
}
"""The keys of the last line, in its order."""

PARTS = {
    "items": Part("knowledge_flow.measure_items", ("items_ratio",), 240, {"count": 8}),
    "memory": Part("knowledge_flow.measure_memory", (), 600, {"count": 8}, by_default=False),
    "fairness": Part("knowledge_flow.measure_fairness", ("jain", "small_base_ratio"), 240, {"each": 5, "large": 100}),
    "search": Part("knowledge_search.measure_one_base", ("search_p95_ms",), 240, {"chunks": 1000}),
    "bases": Part("knowledge_search.measure_many_bases", ("search_200_bases_p95_ms",), 240, {"chunks": 1000}),
    "reads": Part("knowledge_api.measure_reads", ("api_rps", "api_p99_ms"), 150, {"seconds": 1.0, "files": 40}),
    "upload": Part("knowledge_api.measure_upload", ("upload_peak_mb",), 150, {"megabytes": 10}),
    "exports": Part("knowledge_api.measure_exports", ("export_peak_mb",), 240, {"megabytes": 1}),
}

SUITE = Suite("benchmarks.knowledge", "Knowledge bases and the REST API, measured.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
