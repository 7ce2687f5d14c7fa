"""The Celery application: its configuration, logging, and resets after a fork."""

import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery
from celery._state import _get_active_apps
from celery.app import backends
from celery.loaders.app import AppLoader
from celery.signals import (
    beat_init,
    celeryd_after_setup,
    celeryd_init,
    setup_logging,
    worker_before_create_process,
    worker_process_init,
)

from pipeline.engine import privacy
from pipeline.engine.logs import configure
from pipeline.process import forget_context, get_context
from pipeline.reading.sandbox import child_process
from pipeline.settings import get_settings
from tasks.celery_internals import messages as _messages  # noqa: F401  # every message says when it was sent

MAINTENANCE = "maintenance"
"""The queue of beat's tasks and of wake-ups."""
CONFIGURATION = "celeryconfig"
PROCESS_FILES = Path("/proc/self/fd")
"""The open files of this process, on Linux."""


class _Loader(AppLoader):
    """Celery's loader, but it imports modules from Penstock's folder, and never from the current folder."""

    def import_from_cwd(self, module: str, imp: Any = None, package: str | None = None) -> Any:
        if module == CONFIGURATION:
            return configuration()
        return (imp or self.import_module)(module, package=package)


class _Application(Celery):
    """Celery's application, but it ignores `CELERY_BROKER_URL` and the like, which belong to other applications."""

    amqp_cls = "tasks.celery_internals.broker:Amqp"

    def connection_for_read(self, url: str | None = None, **options: Any) -> Any:
        return super().connection_for_read(url or self.conf["broker_url"], **options)

    def connection_for_write(self, url: str | None = None, **options: Any) -> Any:
        return super().connection_for_write(url or self.conf["broker_url"], **options)

    def _get_backend(self) -> Any:
        backend, url = backends.by_url(self.backend_cls or self.conf["result_backend"], self.loader)
        return backend(app=self, url=url)


@lru_cache(maxsize=1)
def configuration() -> ModuleType:
    """The `celeryconfig.py` beside this package, never another one on the path. Reads the settings on first use."""
    path = Path(__file__).resolve().parents[1] / f"{CONFIGURATION}.py"
    spec = spec_from_file_location(f"tasks.{CONFIGURATION}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Do not replace the current application of a program that imports Penstock. Without one, this must be current:
# otherwise Celery creates a default application, which reads the configuration of the current folder.
_is_alone = not list(_get_active_apps())
app = _Application("penstock", loader=_Loader, set_as_current=_is_alone)
# Chosen by the URL's scheme, so that the URL stays an ordinary one.
app.loader.override_backends = {
    "redis": "tasks.celery_internals.results:ChordCounter",
    "rediss": "tasks.celery_internals.results:ChordCounter",
    "sentinel": "tasks.celery_internals.results:SentinelChordCounter",
}
app.config_from_object(CONFIGURATION)


@setup_logging.connect
def _configure_logging(**_: Any) -> None:
    settings = get_settings()
    configure(settings.log_level, as_json=settings.log_json)


@celeryd_init.connect
@beat_init.connect
def _keep_private(**_: Any) -> None:
    """Make new files of workers and beat private to their user. A program that only sends messages keeps its umask."""
    privacy.begin()


@celeryd_after_setup.connect
def _consume_maintenance(sender: str, instance: Any, **_: Any) -> None:  # noqa: ARG001  # the signal's names
    """Make every worker consume `maintenance`, whatever its `-Q`: recovery must not wait behind other work."""
    queues = instance.app.amqp.queues
    queues.select_add(queues[MAINTENANCE])


_pool_masters: set[int] = set()
"""The pids of workers that fork pool processes, which inherit this set."""


@worker_before_create_process.connect
def _close_idle(**_: Any) -> None:
    """Close the database before a fork. If the child closed inherited files, SQLite would drop the parent's locks."""
    _pool_masters.add(os.getpid())
    get_context().db.dispose()
    child_process.serve()  # one server of readers for all processes of the pool


@worker_process_init.connect
def _reset_after_fork(**_: Any) -> None:
    # A forked process must not use inherited connections.
    forget_context()
    if _pool_masters - {os.getpid()} and PROCESS_FILES.is_dir():  # a worker with `-P solo` is its own process
        _close_inherited_sockets()


def _close_inherited_sockets() -> None:
    """Close inherited connections, but keep their file numbers occupied: inherited objects close them once more."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for file in list(PROCESS_FILES.iterdir()):
        with suppress(OSError):  # the file number of the folder itself
            if str(file.readlink()).startswith("socket:"):
                os.dup2(nothing, int(file.name), inheritable=False)
    os.close(nothing)


if "celery.worker.control" in sys.modules:
    # `celery -A tasks inspect` only knows commands that its own process has registered.
    from tasks import panel as _panel  # noqa: F401
