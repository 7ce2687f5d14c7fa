"""Celery's own program on our application: `python -m pipeline.standalone.celery_program worker -Q …`.

`celery -A tasks` looks in the folder one stands in before it looks anywhere else, and may find another `tasks` there.
"""

import os
import sys

_OTHERS = (
    "APP", "BROKER_URL", "BROKER_READ_URL", "BROKER_WRITE_URL", "RESULT_BACKEND", "LOADER", "CONFIG", "CONFIG_MODULE",
    "WORKDIR", "BROKER",
)  # fmt: skip
"""Variables, with `CELERY_` before them or without, by which Celery would take another application or broker."""


def forget_others() -> None:
    """Drop what the environment says for another Celery application."""
    for name in _OTHERS:
        for variable in (name, f"CELERY_{name}"):
            os.environ.pop(variable, None)


def main(arguments: list[str]) -> None:
    """Run `celery -A tasks` with these arguments; its exit code is Celery's."""
    forget_others()
    sys.argv = ["celery", "-A", "tasks", *arguments]
    from celery import maybe_patch_concurrency  # noqa: PLC0415  # before anything else of Celery

    maybe_patch_concurrency(sys.argv)
    from celery.bin.celery import celery  # noqa: PLC0415

    import tasks.app  # noqa: F401, PLC0415  # so that `-A tasks` finds this one

    sys.exit(celery(prog_name="celery", auto_envvar_prefix="CELERY"))


if __name__ == "__main__":
    main(sys.argv[1:])
