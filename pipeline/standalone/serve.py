"""Entry point of a supervisor on demand: `python -m pipeline.standalone.serve`. Ends when no command uses the stack."""

import sys

from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import privacy
from pipeline.engine.control_characters import printable
from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure
from pipeline.settings import get_settings
from pipeline.standalone.locks import supervisor_lock
from pipeline.standalone.supervisor import Idleness, Supervisor


def main() -> int:
    """Supervise the data folder's stack, unless another process does."""
    privacy.begin()
    settings = get_settings()
    configure(settings.log_level, as_json=settings.log_json)
    with supervisor_lock(settings) as lock:
        if not lock.acquire():
            return 0
        try:
            Supervisor(settings, "on-demand", lock).run(unused=Idleness(settings))
        except (UserError, SQLAlchemyError, OSError) as error:
            sys.stderr.write(f"{printable(str(error))}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
