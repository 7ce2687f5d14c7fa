"""Beat's task for nodes: regular upkeep. Two beats do no harm: one of them takes each tick."""

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
"""How long to skip a gateway's Redis that was unreachable: waiting for it occupies a worker's thread."""


@app.task(name="maintenance.tend_nodes", ignore_result=True)
def tend_nodes() -> int:
    """Collect dead letters, forget nodes that left long ago, free slots without a job, end abandoned jobs.

    Returns the number of actions; 0 if another process has just done so. Does nothing without tokens, because then no
    gateway exists. Logs a gateway's unreachable Redis and skips it for a minute.
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
    counts = {name: count for name, count in asdict(done).items() if count}
    if counts:
        log.info("nodes.tended", **counts)
    return sum(counts.values())
