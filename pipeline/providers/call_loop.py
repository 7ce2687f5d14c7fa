"""The event loop for all calls of this process, in a separate thread, which the first call starts.

Socket timeouts restart with every byte, so a slow server could hold a thread forever. Cancelling a coroutine ends a
whole call, from name lookup to the last byte, at a fixed time.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_NAME_LOOKUPS = 32  # at once; with asyncio's few threads, one slow name server would delay all calls
_AT_GATES = 64  # at once

T = TypeVar("T")


class _Calls:
    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.gates = ThreadPoolExecutor(_AT_GATES, "provider-gates")
        self._lock = threading.Lock()

    def running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self.loop is None:
                loop = asyncio.new_event_loop()
                loop.set_default_executor(ThreadPoolExecutor(_NAME_LOOKUPS, "provider-names"))
                threading.Thread(target=loop.run_forever, name="provider-calls", daemon=True).start()
                self.loop = loop
            return self.loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this process's loop, and return its result; interrupting the waiting thread cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _calls.running_loop())
    try:
        return future.result()
    finally:
        future.cancel()


def at_gate(hook: Callable[[], None]) -> asyncio.Future[None]:
    """Call a request hook in a thread, since it asks Redis and may wait for its turn; return a future for the loop's
    coroutine to await."""
    return asyncio.get_running_loop().run_in_executor(_calls.gates, hook)


def is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is the loop of this process, not one inherited from its parent."""
    return loop is _calls.loop


def drop(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Let `loop` run `close` soon, without waiting for it. In a forked child, whose parent owns the loop, keep the
    resources open, since closing would disturb the parent."""
    if is_running(loop):
        asyncio.run_coroutine_threadsafe(close(), loop)
    else:
        _inherited.append(close)


def _renew() -> None:
    """Reset a forked child: it has no loop thread, and a thread of its parent may have held the lock."""
    global _calls  # noqa: PLW0603 (a process has one, and a fork makes a process)
    _inherited.append(_calls)
    _calls = _Calls()


_calls = _Calls()
_inherited: list[object] = []
os.register_at_fork(after_in_child=_renew)
