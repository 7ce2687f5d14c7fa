"""The process that forks children for `child`: `python -m pipeline.reading.sandbox.child_server SOCKET`.

It has loaded the libraries that read files, and its environment holds no secrets. A caller connects to the socket and
sends a child's standard input, output and lifeline, and the names of libraries that its tasks may need. The server
answers with the process id and, later, its exit status.
"""

import contextlib
import gc
import os
import selectors
import shutil
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

from pipeline.engine import privacy
from pipeline.reading.sandbox.child_process import LIBRARIES

_PATIENCE_S = 1.0
_BACKLOG = 128
_REQUEST_BYTES = 4_096


def main(path: Path, *, own_folder: bool = False) -> None:
    """Fork a child for each caller at the socket `path`, until the process that started this one closes our standard
    input. `own_folder`: the socket has a folder of its own, which this process removes in the end."""
    privacy.begin()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(_BACKLOG)  # from here on, callers wait instead of failing
        _load()
        try:
            _serve(listener)
        finally:
            if own_folder:
                shutil.rmtree(path.parent, ignore_errors=True)


def _load() -> None:
    gc.disable()
    import_module("pipeline.reading.sandbox.tasks")  # only now, so that callers can connect meanwhile
    import_module("pipeline.reading.ocr.layout_model").prepare()
    import_module("pipeline.reading.sandbox.confinement").code()
    gc.enable()
    gc.freeze()


def _load_libraries(wanted: Sequence[str]) -> None:
    """Import these libraries, so that this child and later ones need not."""
    missing = [name for name in LIBRARIES if name in wanted and name not in sys.modules]
    for name in missing:
        with contextlib.suppress(Exception):  # the child reports its own error
            import_module(name)
    if missing:
        gc.freeze()


def _serve(listener: socket.socket) -> None:
    parent = sys.stdin.fileno()
    children: dict[int, _Forked] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(parent, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == parent:
                    return
                if key.fileobj is listener:
                    if (forked := _fork(listener)) is not None:
                        children[forked.descriptor] = forked
                        selector.register(forked.descriptor, selectors.EVENT_READ)
                else:
                    selector.unregister(key.fd)
                    children.pop(key.fd).send_status()


class _Forked(NamedTuple):
    """A forked child, and the connection of its caller."""

    process: int
    descriptor: int
    caller: socket.socket

    def send_status(self) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        os.close(self.descriptor)
        with self.caller, contextlib.suppress(OSError):
            self.caller.send(str(status).encode())


def _fork(listener: socket.socket) -> _Forked | None:
    """Fork a child for the next caller; return None if the caller has left."""
    caller, _ = listener.accept()
    caller.settimeout(_PATIENCE_S)
    streams: Sequence[int] = ()
    try:
        wanted, streams, _, _ = socket.recv_fds(caller, _REQUEST_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
        if len(streams) != 3:
            raise ConnectionError
        _load_libraries(wanted.decode("ascii", "replace").split())
        process = os.fork()
        if not process:
            _become(streams)
        descriptor = os.pidfd_open(process)
        with contextlib.suppress(OSError):  # if the caller has left, the lifeline ends the child
            socket.send_fds(caller, [str(process).encode()], [descriptor])
    except OSError:
        caller.close()
        return None
    finally:
        for stream in streams:
            os.close(stream)
    return _Forked(process, descriptor, caller)


def _become(streams: Sequence[int]) -> NoReturn:
    """Run the child's loop. The child keeps this process's modules and none of its descriptors."""
    status = 1
    try:
        from pipeline.reading.sandbox import child_main  # noqa: PLC0415  # `_load` has imported it

        os.setpgid(0, 0)  # the supervisor kills the server's group
        for number, stream in enumerate((*streams[:2], os.open(os.devnull, os.O_WRONLY), streams[2])):
            os.dup2(stream, number)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        child_main.main(3)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), own_folder=len(sys.argv) > 2)
