"""Entry point of a supervisor on demand: `python -m pipeline.standalone.serve`. Ends when no command uses the stack."""

import gc
import sys


def main() -> int:
    """Supervise the data folder's stack until no command uses it; return the exit code. If another process supervises
    it, return 0 at once."""
    gc.disable()  # imports make no garbage; `program.load` does further imports and then enables it
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    from pipeline.engine import privacy  # noqa: PLC0415
    from pipeline.engine.control_characters import printable  # noqa: PLC0415
    from pipeline.engine.errors import UserError  # noqa: PLC0415
    from pipeline.engine.logs import configure  # noqa: PLC0415
    from pipeline.settings import get_settings  # noqa: PLC0415
    from pipeline.standalone.locks import supervisor_lock  # noqa: PLC0415
    from pipeline.standalone.supervisor import Idleness, Supervisor  # noqa: PLC0415

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
