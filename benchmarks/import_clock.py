"""`penstock` with a clock on its imports: `python -m benchmarks.import_clock FILE ARGUMENTS…`.

FILE gets a line for each import of the main thread that no other import made: when it began and when it ended, in
monotonic seconds. Nothing else is imported before the clock runs, so this is a module of its own.
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
    bootstrap: Any = importlib._bootstrap  # where every import passes
    load, depth = bootstrap._find_and_load, 0

    def timed(*arguments: Any) -> Any:
        nonlocal depth
        if depth or threading.current_thread() is not threading.main_thread():
            return load(*arguments)
        depth, begun = 1, time.monotonic()
        try:
            return load(*arguments)
        finally:
            depth = 0
            os.write(log, f"{begun} {time.monotonic()}\n".encode())

    bootstrap._find_and_load = timed


if __name__ == "__main__":
    main()
