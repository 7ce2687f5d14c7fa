"""A TCP proxy that acts like a bad network: it cuts connections, lets them hang, or slows them down."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

DEADLINE_S = 10
_CHUNK = 65_536
_STEP_S = 0.02


class TcpProxy:
    """A proxy to one port of this machine. A context manager, which cuts every connection at its end."""

    def __init__(self, port: int) -> None:
        """`port`: the target of connections."""
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._flows = threading.Event()
        self._bytes_per_step = 0
        self._server: asyncio.Server | None = None
        self.cuts = 0
        """Connections that were cut."""

    def __enter__(self) -> Self:
        self._flows.set()
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The proxy's address for WebSockets."""
        return f"ws://127.0.0.1:{self.port}"

    def cut(self) -> int:
        """Reset every connection, even within a message. Returns their number."""
        return asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(DEADLINE_S)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let all connections hang within the block."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextmanager
    def trickling(self, bytes_per_step: int) -> Iterator[None]:
        """Slow all connections down within the block: forward so many bytes, fifty times a second."""
        self._bytes_per_step = bytes_per_step
        try:
            yield
        finally:
            self._bytes_per_step = 0

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _reset(writer)
            return
        ends = {writer, there[1]}
        self._open |= ends
        try:
            await asyncio.gather(self._pass_on(reader, there[1]), self._pass_on(there[0], writer))
        finally:
            self._open -= ends
            for end in ends:
                end.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(self._bytes_per_step or _CHUNK):
                while not self._flows.is_set():
                    await asyncio.sleep(_STEP_S)
                writer.write(data)
                await writer.drain()
                if self._bytes_per_step:
                    await asyncio.sleep(_STEP_S)
        writer.close()

    async def _cut(self) -> int:
        writers = list(self._open)
        for writer in writers:
            _reset(writer)
        self.cuts += len(writers) // 2
        return len(writers) // 2

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self._flows.set()
        await self._cut()
        current = asyncio.current_task()
        # The clients notice that their connections have ended.
        if others := [task for task in asyncio.all_tasks() if task is not current]:
            await asyncio.wait(others, timeout=DEADLINE_S / 2)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST, like a router that has forgotten it."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
