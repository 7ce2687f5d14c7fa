"""A TCP relay whose connections a test can break."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Forwards bytes to `target`, a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Break all connections without a closing message. The relay accepts new ones."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._open.clear()

    def run(self) -> None:
        """Accept connections until the listener is closed."""
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Stop accepting."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


@contextmanager
def relay(target: int) -> Iterator[Relay]:
    """Run a relay."""
    new_relay = Relay(target)
    thread = threading.Thread(target=new_relay.run)
    thread.start()
    try:
        yield new_relay
    finally:
        new_relay.close()
        thread.join()
