"""An operator's commands for queues and breakers: pause, resume, open, close, change settings.

Each command writes a row, so it also applies to workers that start later, and then corrects the gates in Redis.
"""

from typing import Any

from pipeline.engine import live_settings as live
from pipeline.engine.gate import FOR_EVER
from pipeline.engine.transaction import Tx
from pipeline.providers import gates
from pipeline.storage.context import Context


def pause(context: Context, queue: str, seconds: float | None = None, reason: str = "") -> None:
    """Close a queue for an operator: for `seconds`, or until `resume`. Raises `UserError` for an unknown queue."""
    context.gates.require(queue)
    now = context.db.now()
    until = FOR_EVER if seconds is None else int((now.timestamp() + seconds) * 1000)
    context.db.run(lambda tx: live.put(tx, f"pause.{queue}", {"until": until, "reason": reason}))
    _apply_if_online(context, queue)


def resume(context: Context, queue: str) -> None:
    """End an operator's pause, if there is one, but not a breaker's. Raises `UserError` for an unknown queue."""
    context.gates.require(queue)
    context.db.run(lambda tx: live.drop(tx, f"pause.{queue}"))
    _apply_if_online(context, queue)


def open_breaker(context: Context, name: str, seconds: float = 0.0, reason: str = "by hand") -> float:
    """Open a breaker for `seconds`, 0 for its cool-down; never shorten an opening. Return the seconds left. Raises
    `UserError` for an unknown one, and `RedisError`."""
    breaker = gates.require_breaker(context, name)
    left_s = breaker.open(seconds, reason)
    gates.remember_breaker(context, name, breaker.inspect())
    context.gates_changed(context.gates.closed_by(name))
    return left_s


def close_breaker(context: Context, name: str) -> None:
    """Close a breaker now, before its time is over. Raises `UserError` for an unknown one, and `RedisError`, perhaps
    after the database has recorded the closing."""
    breaker = gates.require_breaker(context, name)
    # The database first: a worker that starts in between would reopen it.
    gates.remember_breaker(context, name, None, "by hand")
    breaker.close()
    context.gates_changed(context.gates.closed_by(name))


def change_setting(context: Context, key: str, text: str, *, reason: str = "", by: str = "") -> Any:
    """Set a live setting, with its author and reason; return the value in force. Raises `UserError`."""
    known = context.gates.live_settings

    def act(tx: Tx) -> Any:
        value = live.change(tx, known, key, text)
        live.note(tx, key, reason, by)
        return value

    value = context.db.run(act)
    _apply_if_online(context, *context.gates.queues)
    return value


def reset_setting(context: Context, key: str, *, reason: str = "", by: str = "") -> Any:
    """Reset a live setting to its default, and return that. Raises `UserError`."""
    gates.live_setting(context, key)

    def act(tx: Tx) -> None:
        live.drop(tx, key)
        live.note(tx, key, reason, by)

    context.db.run(act)
    _apply_if_online(context, *context.gates.queues)
    return gates.live_setting(context, key).value


def _apply_if_online(context: Context, *queues: str) -> None:
    # If Redis is down, the next worker that starts corrects it.
    if context.online:
        gates.sync(context)
        context.gates_changed(queues)
