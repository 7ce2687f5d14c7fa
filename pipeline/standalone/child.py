"""Entry point of a supervised Celery process: `python -m pipeline.standalone.child worker …`."""

import os
import signal
import sys
import threading

from pipeline.engine import privacy
from pipeline.standalone import celery_program


def end_with_supervisor() -> None:
    """Start a thread that sends this process SIGTERM when the supervisor ends in any way, which closes our standard
    input."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def main(arguments: list[str]) -> None:
    """Run Celery's `worker` or `beat` with these arguments on our application."""
    end_with_supervisor()
    celery_program.forget_others()
    privacy.begin()
    # After the watch: imports take a second. Import each program separately: `celery.bin.celery` imports every
    # installed program, including Flower and an interactive shell.
    from celery.bin import beat, worker  # noqa: PLC0415
    from celery.bin.base import CLIContext  # noqa: PLC0415

    from tasks.app import app  # noqa: PLC0415

    name, *options = arguments
    program = {"worker": worker.worker, "beat": beat.beat}[name]
    context = CLIContext(app=app, no_color=False, workdir=None)
    program.main(options, prog_name=f"celery {name}", standalone_mode=False, obj=context)


if __name__ == "__main__":
    main(sys.argv[1:])
