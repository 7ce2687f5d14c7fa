"""Operations on live settings. Only administrators see and change them."""

from typing import Any

from pipeline.operations.caller import Caller
from pipeline.operations.operation import operation, reads
from pipeline.providers import gates, queue_control
from pipeline.storage.api_keys import Scope

list_settings, setting = reads(gates.live_settings, Scope.ADMIN), reads(gates.live_setting, Scope.ADMIN)


@operation(Scope.ADMIN)
def change_setting(caller: Caller, key: str, text: str, *, reason: str = "", by: str = "") -> Any:
    """Set a live setting; return the value in force. Lists show `reason` and `by` beside it. Raises `UserError`."""
    return queue_control.change_setting(caller.context, key, text, reason=reason, by=by or caller.name)


@operation(Scope.ADMIN)
def reset_setting(caller: Caller, key: str, *, reason: str = "", by: str = "") -> Any:
    """Reset a live setting to its default; return that. Raises `UserError`."""
    return queue_control.reset_setting(caller.context, key, reason=reason, by=by or caller.name)
