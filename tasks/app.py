"""The Celery application: logging, and what has to be made anew after a fork."""

from typing import Any

from celery import Celery
from celery.signals import celeryd_after_setup, setup_logging, worker_process_init

from pipeline.engine.logs import configure
from pipeline.settings import get_settings
from pipeline.storage.context import forget_context
from tasks import arrival as _arrival  # noqa: F401  # every message says when it was sent

MAINTENANCE = "maintenance"
"""The queue of beat's tasks and of wake-ups."""
app = Celery("penstock")
# By the URL's scheme, so that the URL itself stays an ordinary one.
app.loader.override_backends = {
    "redis": "tasks.chord_counter:ChordCounter",
    "rediss": "tasks.chord_counter:ChordCounter",
    "sentinel": "tasks.chord_counter:SentinelChordCounter",
}
app.config_from_object("celeryconfig")


@setup_logging.connect
def _configure_logging(**_: Any) -> None:
    settings = get_settings()
    configure(settings.log_level, as_json=settings.log_json)


@celeryd_after_setup.connect
def _consume_maintenance(sender: str, instance: Any, **_: Any) -> None:  # noqa: ARG001  # the signal's names
    """Every worker sweeps, whatever its `-Q`: what recovers work must not wait behind it."""
    queues = instance.app.amqp.queues
    queues.select_add(queues[MAINTENANCE])


@worker_process_init.connect
def _begin_anew(**_: Any) -> None:
    # Connections do not survive a fork.
    forget_context()
