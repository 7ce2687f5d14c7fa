"""The Celery application: logging, and what has to be made anew after a fork."""

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
from pipeline.settings import get_settings
from tasks.celery_internals import messages as _messages  # noqa: F401  # every message says when it was sent

MAINTENANCE = "maintenance"
"""The queue of beat's tasks and of wake-ups."""
CONFIGURATION = "celeryconfig"
PROCESS_FILES = Path("/proc/self/fd")
"""What this process has open, on Linux."""


class _Loader(AppLoader):
    """Celery's own, but that modules come from where Penstock is, and never from the folder one stands in."""

    def import_from_cwd(self, module: str, imp: Any = None, package: str | None = None) -> Any:
        if module == CONFIGURATION:
            return configuration()
        return (imp or self.import_module)(module, package=package)


class _Application(Celery):
    """Celery's own, but that `CELERY_BROKER_URL` and its like are another application's."""

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
    """Our `celeryconfig.py`, from beside this package: another may lie in the path. Reads the settings on first use."""
    path = Path(__file__).resolve().parents[1] / f"{CONFIGURATION}.py"
    found = spec_from_file_location(f"tasks.{CONFIGURATION}", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


# Not the current one where a program that imports us has an application of its own. Else somebody has to be: Celery
# would make up another one, which reads the configuration of whatever folder one stands in.
_is_alone = not list(_get_active_apps())
app = _Application("penstock", loader=_Loader, set_as_current=_is_alone)
# By the URL's scheme, so that the URL itself stays an ordinary one.
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
    """Workers and beat, however they are started; a program that only sends them work keeps its umask."""
    privacy.begin()


@celeryd_after_setup.connect
def _consume_maintenance(sender: str, instance: Any, **_: Any) -> None:  # noqa: ARG001  # the signal's names
    """Every worker sweeps, whatever its `-Q`: what recovers work must not wait behind it."""
    queues = instance.app.amqp.queues
    queues.select_add(queues[MAINTENANCE])


_pool_masters: set[int] = set()
"""The worker that forks pool processes, known to them as well."""


@worker_before_create_process.connect
def _close_idle(**_: Any) -> None:
    """Files of a database that a pool process inherits cannot be closed there: SQLite would drop this one's locks."""
    _pool_masters.add(os.getpid())
    get_context().db.dispose()


@worker_process_init.connect
def _begin_anew(**_: Any) -> None:
    # Connections do not survive a fork.
    forget_context()
    if _pool_masters - {os.getpid()} and PROCESS_FILES.is_dir():  # a worker with `-P solo` is its own process
        _let_go_of_sockets()


def _let_go_of_sockets() -> None:
    """Close the worker's connections here, and keep their numbers: objects that are inherited close them once more."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for file in list(PROCESS_FILES.iterdir()):
        with suppress(OSError):  # the folder's own
            if str(file.readlink()).startswith("socket:"):
                os.dup2(nothing, int(file.name), inheritable=False)
    os.close(nothing)


if "celery.worker.control" in sys.modules:
    # `celery -A tasks inspect` knows the commands that its own process has.
    from tasks import panel as _panel  # noqa: F401
