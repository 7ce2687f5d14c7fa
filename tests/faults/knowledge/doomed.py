"""A worker without Celery that dies at the point `KILL_AT`: `python -m tests.faults.knowledge.doomed`."""

from pipeline.process import get_context
from tests.support.knowledge_driver import Driver

if __name__ == "__main__":
    import tests.faults.screenshots.killing  # noqa: F401  # arms itself

    Driver(get_context()).work_off()
