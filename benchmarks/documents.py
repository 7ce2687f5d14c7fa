"""The documents flow, measured: `python -m benchmarks.documents [--quick] [--only NAME …]`.

Prints progress to standard error, a table, and as its last line one JSON object with the keys of `AIMS`. Each part
runs in a process, a data folder and a stack of its own, which end with it. Reads `documents/DA-619p.pdf` of the
corpus, beside this repository or where PENSTOCK_CORPUS says.
"""

import sys

from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "pages_per_s_ratio": Aim("pages/s, of a bare pool's", 0.85, at_least=True),
    "worker_peak_mb": Aim("peak memory of the cpu worker (PSS)", 300, unit="MB"),
    "provider_utilisation": Aim("use of a provider's 32 calls at once", 0.90, at_least=True),
    "submit_to_start_ms": Aim("submit to the first page's start", 100, unit="ms"),
    "small_document_ratio": Aim("3 pages beside 619, of 2 × alone + 1 s", 1),
    "publish_2000_s": Aim("publishing a 2,000-page document", 0.2, unit="s"),
    "cold_convert_s": Aim("penstock convert, empty folder, no stack", 6, unit="s"),
    "convert_vs_markitdown_cold": Aim("the same, of markitdown's command with the same page"),
    "warm_convert_s": Aim("penstock convert beside penstock up", 1.5, unit="s"),
    "convert_vs_markitdown_warm": Aim("the same, of markitdown's command with the same page", 0.6),
    "units_vs_chord_quantum": Aim("empty units/s, of a plain chord's", 9, at_least=True),
    "units_vs_chord_single": Aim("the same, one unit a message", 0.40, at_least=True),
}
"""The keys of the last line, in its order."""

PARTS = {
    "conversion": Part("throughput.measure", ("pages_per_s_ratio", "worker_peak_mb"), 240, {"rounds": 1, "pages": 40}),
    "provider": Part("vision.measure", ("provider_utilisation",), 120, {"pages": 64}),
    "start": Part("latency.start", ("submit_to_start_ms",), 90, {"documents": 3}),
    "small": Part("latency.small", ("small_document_ratio",), 120, {"rounds": 1}),
    "publish": Part("publishing.measure", ("publish_2000_s",), 90, {"pages": 200}),
    "cold": Part("commands.cold", ("cold_convert_s", "convert_vs_markitdown_cold"), 180, {"rounds": 1}),
    "warm": Part("commands.warm", ("warm_convert_s", "convert_vs_markitdown_warm"), 120, {"rounds": 1}),
    "units": Part(
        "units.measure", ("units_vs_chord_quantum", "units_vs_chord_single"), 150, {"units": 300, "rounds": 1}
    ),
}

SUITE = Suite("benchmarks.documents", "The documents flow, measured.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
