"""Workers by role: their queues, pool and concurrency."""

from pipeline.engine.errors import UserError
from pipeline.flows import gate_registry
from pipeline.settings import Settings

ROLES = ("cpu", "ai", "control", "io", "capture")
CONTROL_THREADS, IO_THREADS = 7, 4
"""Reading and fetching usually run at most three at once (`knowledge.io_concurrency`), and so do webhooks
(`webhooks.width`), so that short work always finds a thread in a worker of both queues."""


class NothingToDo(UserError):
    """The configuration leaves no queue for a worker of this role."""


def arguments(settings: Settings, role: str, *, with_io: bool = False) -> list[str]:
    """Return the arguments of `celery worker` for a role. `with_io`: one process for `control` and `io`.

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
                    "a capture worker has nothing to do: configure its sources, such as "
                    """PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES='["screen:*"]' (beat needs it too), and start it again""",
                    code="idle",
                )
            # One thread for the screens, and one for sweeps, which every worker does.
            return _worker(role, "capture", "threads", 2)
    raise UserError(f"there is no role {role}: choose from {', '.join(ROLES)}", code="usage")


def needed(settings: Settings) -> list[str]:
    """Return the roles that the configuration gives work to, in the order of `ROLES`."""
    idle = {"ai": not gate_registry(settings).queues, "capture": not settings.screenshots.capture_sources}
    return [role for role in ROLES if not idle.get(role)]


def _worker(role: str, queues: str, pool: str, concurrency: int) -> list[str]:
    return ["worker", "-Q", queues, "-P", pool, "-c", str(concurrency), "-n", f"{role}@%h"]
