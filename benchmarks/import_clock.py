"""`penstock` with a clock on its imports: `python -m benchmarks.import_clock FILE ARGUMENTS…`.

FILE gets a line for each outermost import of the main thread: its start and its end in monotonic seconds. This module
imports nothing else before the clock runs, so it is a module of its own.
"""

import importlib
import os
import sys
import threading
import time
from typing import Any


def main() -> None:
    """Run the command line."""
    path, *arguments = sys.argv[1:]
    sys.argv = ["penstock", *arguments]
    _start_clock(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC))
    import penstock_entry

    penstock_entry.main()


def _start_clock(log: int) -> None:
    bootstrap: Any = importlib._bootstrap  # every import calls it
    load, depth = bootstrap._find_and_load, 0

    def timed(*arguments: Any) -> Any:
        nonlocal depth
        if depth or threading.current_thread() is not threading.main_thread():
            return load(*arguments)
        depth, started = 1, time.monotonic()
        try:
            return load(*arguments)
        finally:
            depth = 0
            os.write(log, f"{started} {time.monotonic()}\n".encode())

    bootstrap._find_and_load = timed


if __name__ == "__main__":
    main()
