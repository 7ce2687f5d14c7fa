"""Beat's task for inference nodes: what time alone asks for. Two beats do no harm: one of them takes each tick."""

from dataclasses import asdict
from uuid import uuid4

import structlog
from redis import RedisError

from pipeline.engine.errors import UserError
from pipeline.engine.leases import Leases
from pipeline.nodes import service
from pipeline.nodes.settings import gateway_settings
from pipeline.process import get_context
from tasks.app import app

log = structlog.get_logger(__name__)
_PATIENCE_S = 5.0
AWAY_S = 60.0
"""How long a gateway's Redis that is away is left alone: waiting for it takes up a worker's thread."""


@app.task(name="maintenance.tend_nodes", ignore_result=True)
def tend_nodes() -> int:
    """Set dead letters aside, forget nodes long gone, free slots that nobody holds, end jobs that nobody ends.

    How much there was to do. Where nobody ever made a token, there is no gateway, and nothing is asked. A gateway's
    Redis that is away disturbs nobody else.
    """
    context = get_context()
    if not service.is_used(context):
        return 0
    tick, name = Leases(context.redis, "tick:nodes", limit=1), uuid4().hex
    if not tick.acquire(name, gateway_settings(context.settings).dlq_scan_interval_ms / 1000 * 0.8):
        return 0
    try:
        done = service.tend(context, _PATIENCE_S)
    except (RedisError, UserError) as error:
        log.warning("nodes.not_tended", error=type(error).__name__)
        tick.acquire(name, AWAY_S)
        return 0
    found = {name: count for name, count in asdict(done).items() if count}
    if found:
        log.info("nodes.tended", **found)
    return sum(found.values())
