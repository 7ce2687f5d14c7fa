"""Workers by role: which queues, which pool, how many at once."""

from pipeline.engine.errors import UserError
from pipeline.flows import gate_registry
from pipeline.settings import Settings

ROLES = ("cpu", "ai", "control", "io", "capture")
CONTROL_THREADS, IO_THREADS = 7, 4
"""Reading and fetching is limited to three at once as a rule (`knowledge.io_concurrency`), and so are webhooks
(`webhooks.width`), so that in a worker of both queues short work always finds a thread."""


class NothingToDo(UserError):
    """As things are configured, no queue is left for a worker of this role."""


def arguments(settings: Settings, role: str, *, with_io: bool = False) -> list[str]:
    """Arguments of `celery worker` for a role. `with_io`: one process for `control` and `io`.

    Raises `NothingToDo`, or `UserError` for an unknown role.
    """
    match role:
        case "cpu":
            return _worker(role, "cpu", "prefork", settings.documents.converter_count)
        case "control":
            queues, more = ("control,io", IO_THREADS) if with_io else ("control", 0)
            return _worker(role, queues, "threads", CONTROL_THREADS + more)
        case "io":
            return _worker(role, "io", "threads", 2 * IO_THREADS)
        case "ai":
            queues = ",".join(gate_registry(settings).queues)
            if not queues:
                raise NothingToDo(
                    "an ai worker has nothing to do without a provider: configure one with "
                    "PENSTOCK_PROVIDERS__<NAME>__API_KEY and …__MODEL, and start the worker again",
                    code="idle",
                )
            return _worker(role, queues, "threads", settings.ai_concurrency)
        case "capture":
            if not settings.screenshots.capture_sources:
                raise NothingToDo(
                    "a capture worker has nothing to do: name what it is to capture, such as "
                    """PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES='["screen:*"]' (beat needs it too), and start it again""",
                    code="idle",
                )
            # One for the screens, and one for sweeps, which every worker does.
            return _worker(role, "capture", "threads", 2)
    raise UserError(f"there is no role {role}: choose from {', '.join(ROLES)}", code="usage")


def needed(settings: Settings) -> list[str]:
    """The roles that have something to do as things are configured."""
    idle = {"ai": not gate_registry(settings).queues, "capture": not settings.screenshots.capture_sources}
    return [role for role in ROLES if not idle.get(role)]


def _worker(role: str, queues: str, pool: str, concurrency: int) -> list[str]:
    return ["worker", "-Q", queues, "-P", pool, "-c", str(concurrency), "-n", f"{role}@%h"]
