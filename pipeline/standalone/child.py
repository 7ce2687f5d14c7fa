"""Entry point of a supervised Celery process: `python -m pipeline.standalone.child worker …`."""

import os
import signal
import sys
import threading

from pipeline.engine import privacy
from pipeline.standalone import celery_program


def end_with_supervisor() -> None:
    """Send ourselves SIGTERM when the supervisor dies, however it does: that closes its end of our standard input."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def main(arguments: list[str]) -> None:
    """Run `celery` with these arguments on our application."""
    end_with_supervisor()
    celery_program.forget_others()
    privacy.begin()
    from tasks.app import app  # noqa: PLC0415  # after the watch: the import takes a second

    app.start(argv=arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
