"""A new user's first commands, measured: `python -m benchmarks.start [--quick] [--setup] [--only NAME …]`.

Prints progress to standard error, a table, and as its last line one JSON object with the keys of `AIMS`. Each part
runs in a process and a data folder of its own, which end with it. Yardsticks run in turns with Penstock. The extra
`bench` installs markitdown: `pip install 'markitdown[pdf]'`.
"""

import sys

from benchmarks.suite import Aim, Part, Suite

AIMS = {
    "first_vs_markitdown": Aim("penstock convert of a page, empty folder, of markitdown's"),
    "cold_vs_markitdown": Aim("the same with a folder that was used before", 2.2),
    "warm_vs_markitdown": Aim("the same beside penstock up", 0.6),
    "help_s": Aim("penstock --help", unit="s"),
    "status_s": Aim("penstock status beside penstock up", unit="s"),
    "first_progress_s": Aim("cold: to the first line on a terminal, without imports", 0.3, unit="s"),
    "up_ready_vs_import": Aim("penstock up until it is ready, of one import of it all", 1.8),
    "stack_pss_mb": Aim("memory (PSS) of the stack at rest", 350, unit="MB"),
    "idle_cpu": Aim("the stack at rest, of a core", 1, unit="%"),
    "setup_uv_s": Aim("make setup by uv, nothing kept from before", unit="s"),
    "setup_pip_s": Aim("make setup by pip, nothing kept from before", unit="s"),
}
"""The keys of the last line, in its order."""

PARTS = {
    "cold": Part(
        "commands.first_and_cold", ("first_vs_markitdown", "cold_vs_markitdown"), 400, {"firsts": 1, "rounds": 1}
    ),
    "warm": Part("commands.beside_stack", ("warm_vs_markitdown", "help_s", "status_s"), 240, {"rounds": 1}),
    "progress": Part("terminal.measure", ("first_progress_s",), 240, {"rounds": 1}),
    "ready": Part("embedded.measure_start", ("up_ready_vs_import",), 300, {"rounds": 1}),
    "rest": Part("embedded.measure_rest", ("stack_pss_mb", "idle_cpu"), 120, {"window_s": 2.0, "settled_s": 1.0}),
    "setup": Part("installation.measure", ("setup_uv_s", "setup_pip_s"), 900, {}, by_default=False),
}

SUITE = Suite("benchmarks.start", "A new user's first commands, measured.", AIMS, PARTS)

if __name__ == "__main__":
    sys.exit(SUITE.main())
