"""The addresses of a data folder's servers, and checks for free ports. Light: commands import it."""

import errno
import ipaddress
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.engine.errors import UserError
from pipeline.settings import ApiSettings, Settings

_ENDING_S = 3.0
"""How long a server may keep its port while it ends."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # wildcard addresses


def address_of(api: ApiSettings, host: str, port: int) -> str:
    """Return the URL of an API that listens there; for a wildcard address, by this machine's own."""
    own = _EVERYWHERE.get(host, host)
    shown = f"[{own}]" if ":" in own else own
    return f"{'https' if api.tls_certificate else 'http'}://{shown}:{port}{api.prefix}"


def api_address(api: ApiSettings) -> str:
    """Return the API's URL by these settings."""
    return address_of(api, api.host, api.port)


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address or `localhost`: only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@contextmanager
def announced(settings: Settings, server: str, address: str) -> Iterator[None]:
    """Write the address of a server (`api` or `gateway`) into the data folder, for `address_in_use`, until the block
    ends."""
    path = _file(settings, server)
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "address": address}))
    try:
        yield
    finally:
        if _announcement(settings, server).get("pid") == os.getpid():
            path.unlink(missing_ok=True)


def address_in_use(settings: Settings, server: str) -> str:
    """Return the announced address of this data folder's server, if it accepts a connection; else empty."""
    announcement = _announcement(settings, server)
    address = str(announcement.get("address", ""))
    try:
        if announcement.get("host") == socket.gethostname():
            os.kill(int(announcement["pid"]), 0)
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "", parts.port or 0), 1).close()
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ""
    return address


def check_free(host: str, port: int, setting: str, option: str) -> None:
    """Raise `UserError` if another process listens on this port and does not free it within `_ENDING_S`. Its message
    advises to change `setting` or to give `option`."""
    until = time.monotonic() + _ENDING_S
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # the server itself reports the error
            if time.monotonic() < until:
                time.sleep(0.1)
                continue
            message = (
                f"port {port} on {host} is in use, perhaps by another installation: end what listens there, choose "
                f"another port ({setting}), or leave this server out ({option})"
            )
            raise UserError(message, code="port_in_use") from None
        else:
            return


def _file(settings: Settings, server: str) -> Path:
    return settings.data_dir / f"{server}.json"


def _announcement(settings: Settings, server: str) -> dict[str, Any]:
    try:
        content = json.loads(_file(settings, server).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
