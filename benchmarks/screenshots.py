"""The screenshots flow, measured: `python -m benchmarks.screenshots [--quick] [--only NAME …]`.

Prints progress to standard error, a table, and as its last line one JSON object with the keys of `AIMS`. Each part
runs in a process and a data folder of its own, which end with it.
"""

import sys

from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "png_ratio": Aim("PNG frames hashed and judged, of imagehash alone", 0.9, at_least=True),
    "jpeg_draft_speedup": Aim("the same for JPEG frames, decoded smaller", 5, at_least=True),
    "provider_utilisation": Aim("use of a provider's 4 calls at once", 0.90, at_least=True),
    "realtime_p95_ratio": Aim("a new batch beside 2,000 frames to recover, of alone", 2),
    "search_p95_ms": Aim("search over 100,000 nodes, p95", 100, unit="ms"),
    "bytes_per_1000": Aim("disk for 1,000 frames of 1080p", 200e6, unit="B"),
}
"""The keys of the last line, in its order."""

PARTS = {
    "frames": Part(
        "screenshot_frames.measure_hashing",
        ("png_ratio", "jpeg_draft_speedup", "bytes_per_1000"),
        60,
        {"rounds": 1, "stored": 10},
    ),
    "search": Part("screenshot_search.measure_search", ("search_p95_ms",), 300, {"nodes": 1000}),
    "use": Part("screenshot_flow.measure_use", ("provider_utilisation",), 300, {"shots": 40}),
    "realtime": Part(
        "screenshot_flow.measure_realtime", ("realtime_p95_ratio",), 300, {"backlog": 300, "samples": 2, "every_s": 0.5}
    ),
}

SUITE = Suite("benchmarks.screenshots", "The screenshots flow, measured.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
