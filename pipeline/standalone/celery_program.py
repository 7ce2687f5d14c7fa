"""Celery's own program on our application: `python -m pipeline.standalone.celery_program worker -Q …`.

In this process, and without `-A`: `celery -A tasks` looks in the folder one stands in before it looks anywhere else,
and may find another `tasks` there.
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
"""Variables, with `CELERY_` before them or without, by which Celery would take another application or broker."""
_MODULE = "pipeline.standalone.celery_program"


def forget_others() -> None:
    """Drop what the environment says for another Celery application."""
    for name in _OTHERS:
        for variable in (name, f"CELERY_{name}"):
            os.environ.pop(variable, None)


def main(arguments: list[str]) -> None:
    """Run `celery` with these arguments on our application; its exit code is Celery's."""
    forget_others()
    privacy.begin()
    # What a worker runs anew after SIGHUP, with Python before it: a `celery` there would be one of the current folder.
    sys.argv = ["-Pm", _MODULE, *arguments]
    from celery import maybe_patch_concurrency  # noqa: PLC0415  # before anything else of Celery

    maybe_patch_concurrency(["celery", *arguments])
    from celery.bin.celery import celery  # noqa: PLC0415

    from tasks.app import app  # noqa: PLC0415

    celery.params[0].default = app
    sys.exit(celery.main(arguments, prog_name="celery", auto_envvar_prefix="CELERY"))


if __name__ == "__main__":
    main(sys.argv[1:])
