"""The child processes that read files for this process."""

from contextlib import suppress

import psutil

from pipeline.reading.sandbox import child_process


def readers() -> list[psutil.Process]:
    """Return the running readers that this process's own server has forked or that it has started as programs."""
    running = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # other processes may have ended
            forked = process.ppid() in {server.pid for server, _ in child_process._own}
            if process.status() != psutil.STATUS_ZOMBIE and (forked or _is_program(process)):
                running.append(process)
    return running


def started() -> list[psutil.Process]:
    """Return the running readers that this process has started as programs."""
    return [process for process in readers() if _is_program(process)]


def _is_program(process: psutil.Process) -> bool:
    return "pipeline.reading.sandbox.child_main" in process.cmdline()
