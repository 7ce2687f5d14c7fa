"""The WebSocket that follows a task, for clients that do not poll."""

import asyncio
import json
from typing import Any

from anyio.to_thread import run_sync
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pipeline.interfaces.compatibility.docling.task import Task, documents_of, status, unknown
from pipeline.interfaces.http.streams import Stay, feed_of
from pipeline.operations.caller import Caller
from pipeline.operations.refusal import Refused
from pipeline.storage.api_keys import Scope

LONGEST_S = 1800.0
_PAUSE_S = 0.5
"""The shortest time between two messages."""
_MAX_ID = 1000


async def follow(socket: WebSocket) -> None:
    """Send the task's status at the beginning, at each change, and whenever the client sends a message; close after the
    end. Raises `Refused` without the scope `read`, or with too many open streams."""
    caller: Caller = socket.state.caller
    caller.check(Scope.READ)
    feed = feed_of(socket.app.state)
    with feed.stream(caller.id):
        await socket.accept()
        try:
            await _send_changes(socket, caller, Stay(feed, caller, LONGEST_S))
        except (WebSocketDisconnect, TimeoutError):
            pass
        finally:
            if socket.client_state is WebSocketState.CONNECTED:
                await socket.close()


async def _send_changes(socket: WebSocket, caller: Caller, stay: Stay) -> None:
    try:
        task_id = socket.path_params["task_id"]
        if len(task_id) > _MAX_ID:
            raise unknown()
        task = Task.parse(task_id)
        current = await run_sync(_status, caller, task)
        await _send(socket, "connection", current)
        asked = asyncio.Event()
        listening = asyncio.create_task(_listen(socket, asked))
        try:
            sent: dict[str, Any] = {}
            while True:
                if current != sent or asked.is_set():
                    asked.clear()
                    await _send(socket, "update", current)
                    sent = current
                if current["task_status"] in {"success", "failure"} or listening.done() or not await stay.lasts():
                    return
                await asyncio.sleep(_PAUSE_S)
                current = await run_sync(_status, caller, task)
        finally:
            listening.cancel()
    except Refused as error:
        await _send(socket, "error", error=str(error))


async def _listen(socket: WebSocket, asked: asyncio.Event) -> None:
    """Note each message of the client, until it disconnects."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        asked.set()


def _status(caller: Caller, task: Task) -> dict[str, Any]:
    return status(task, documents_of(caller, task))


async def _send(socket: WebSocket, kind: str, task: dict[str, Any] | None = None, error: str | None = None) -> None:
    settings = socket.state.caller.context.settings.api
    async with asyncio.timeout(settings.idle_timeout_s):
        await socket.send_text(json.dumps({"message": kind, "task": task, "error": error}, ensure_ascii=False))
