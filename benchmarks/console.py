"""The console, measured: `python -m benchmarks.console [--quick] [--only NAME …]`.

Prints progress to standard error, a table, and as its last line one JSON object with the keys of `AIMS`. Each part
runs in a process and a data folder of its own, which end with it.
"""

import sys

from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "documents_100k_p95_ms": Aim("list of 100,000 documents, filters and search, p95", 200, unit="ms"),
    "document_page_p95_ms": Aim("a page of a converted document of 120, p95", 150, unit="ms"),
    "first_page_kb": Aim("the first load of a screen, as it is sent", 100, unit="kB"),
    "events_lag_p95_ms": Aim("from a change to its fragment on a stream, p95", 500, unit="ms"),
    "consoles_50_workers_lose": Aim("pages/s lost beside 50 open consoles", 0.05),
    "consoles_50_memory_mb_growth": Aim("the API's memory in that time", 50, unit="MB"),
    "missed_final_states": Aim("consoles that do not show the end", 0),
}
"""The keys of the last line, in its order."""

PARTS = {
    "screens": Part(
        "console_screens.measure",
        ("documents_100k_p95_ms", "document_page_p95_ms", "first_page_kb", "events_lag_p95_ms"),
        360,
        {"documents": 1000, "rounds": 2, "changes": 3},
    ),
    "consoles": Part(
        "console_streams.measure",
        ("consoles_50_workers_lose", "consoles_50_memory_mb_growth", "missed_final_states"),
        480,
        {"consoles": 5, "pages": 40},
    ),
}

SUITE = Suite("benchmarks.console", "The console, measured.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
