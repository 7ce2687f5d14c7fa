"""What the command `penstock` runs first: nothing is imported by the names that a user's folder may have as well.

A folder that came into the path by accident (`PYTHONPATH=:`) would otherwise be asked for `pipeline` before Penstock.
What Python itself imports before this line is Python's: `penstock` has no say in that.
"""

import atexit
import gc
import os
import sys

_NEW_OBJECTS = 10_000
"""After how many new objects Python looks for garbage. Imports make 350,000, which stay."""


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)  # the last look of all, at what ends with the process, takes 0.2 s
    _open_standard_streams()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    from pipeline.engine import search_path  # noqa: PLC0415  # from beside this file, whatever the path says

    del sys.path[0]
    search_path.clean()
    from pipeline.interfaces.cli import main as command  # noqa: PLC0415

    command()


def _open_standard_streams() -> None:
    """Give this process the streams that it was started without: a file that it opens would get a stream's number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
