"""The Celery application: logging, and what has to be made anew after a fork."""

from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_process_init

from pipeline.engine.logs import configure
from pipeline.settings import get_settings
from pipeline.storage.context import forget_context

app = Celery("penstock")
# By the URL's scheme, so that the URL itself stays an ordinary one.
app.loader.override_backends = dict.fromkeys(("redis", "rediss"), "tasks.chord_counter:ChordCounter")
app.config_from_object("celeryconfig")


@setup_logging.connect
def _configure_logging(**_: Any) -> None:
    settings = get_settings()
    configure(settings.log_level, as_json=settings.log_json)


@worker_process_init.connect
def _begin_anew(**_: Any) -> None:
    # Connections do not survive a fork.
    forget_context()
