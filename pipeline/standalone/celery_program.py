"""Run Celery's own program with our application: `python -m pipeline.standalone.celery_program worker -Q …`.

In this process, and without `-A`: `celery -A tasks` searches the current folder first, and may find another `tasks`
there.
"""

import os
import sys

from pipeline.engine import privacy

_OTHERS = (
    "APP",
    "BROKER_URL",
    "BROKER_READ_URL",
    "BROKER_WRITE_URL",
    "RESULT_BACKEND",
    "LOADER",
    "CONFIG",
    "CONFIG_MODULE",
    "WORKDIR",
    "BROKER",
)
"""Variables, with or without the prefix `CELERY_`, that would make Celery use another application or broker."""
_MODULE = "pipeline.standalone.celery_program"


def forget_others() -> None:
    """Remove the environment's settings for other Celery applications."""
    for name in _OTHERS:
        for variable in (name, f"CELERY_{name}"):
            os.environ.pop(variable, None)


def main(arguments: list[str]) -> None:
    """Run `celery` with these arguments on our application; exit with Celery's exit code."""
    forget_others()
    privacy.begin()
    # A worker runs this command again after SIGHUP, with Python before it; `celery` could be one of the current folder.
    sys.argv = ["-Pm", _MODULE, *arguments]
    from celery import maybe_patch_concurrency  # noqa: PLC0415  # before anything else of Celery

    maybe_patch_concurrency(["celery", *arguments])
    from celery.bin.celery import celery  # noqa: PLC0415

    from tasks.app import app  # noqa: PLC0415

    celery.params[0].default = app
    sys.exit(celery.main(arguments, prog_name="celery", auto_envvar_prefix="CELERY"))


if __name__ == "__main__":
    main(sys.argv[1:])
