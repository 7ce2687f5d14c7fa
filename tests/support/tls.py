"""A certificate, and TLS in front of servers without it: the bundled redis-server is built without TLS."""

import asyncio
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Self

_DAYS = 2
_HANDSHAKE = b"\x16"
"""The first byte of every TLS connection, and of no Redis command."""


def certificate(folder: Path) -> tuple[Path, Path]:
    """Create (certificate, key) for 127.0.0.1. The certificate is self-signed, so it is its own authority."""
    cert, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            key,
            "-out",
            cert,
            "-days",
            str(_DAYS),
            "-subj",
            "/CN=penstock-test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


class TlsProxy:
    """A loopback port that ends TLS and forwards everything to `target`. It forwards plain connections as well.

    A context manager. `encrypted` counts the connections with TLS.
    """

    def __init__(self, files: tuple[Path, Path], target: int) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*files)
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls", daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = int(self._listener.getsockname()[1])
        self.encrypted = 0

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            self._keep(self._loop.create_task(self._begin(client)))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, client: socket.socket) -> None:
        try:
            with_tls = await _first_byte(client) == _HANDSHAKE
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, client, ssl=self._context if with_tls else None
            )
        except BaseException as error:
            client.close()
            if isinstance(error, OSError):  # the client does not trust the certificate, or has hung up
                return
            raise
        self.encrypted += with_tls
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(_pump(reader, target_writer), _pump(target_reader, writer))
        except OSError:
            pass  # either side may hang up at any time
        finally:
            transport.abort()
            target_writer.transport.abort()

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # let aborted connections close

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop.call_soon_threadsafe(lambda: self._keep(self._loop.create_task(self._accept())))
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
        self._listener.close()


async def _first_byte(client: socket.socket) -> bytes:
    client.setblocking(False)
    while True:
        try:
            return client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await asyncio.sleep(0.002)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
