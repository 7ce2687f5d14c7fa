"""Where the API is, for people, and whether it answers. Light: commands import it."""

import socket
import time

from pipeline.settings import ApiSettings

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what is listened on


def address_of(api: ApiSettings, host: str, port: int) -> str:
    """Where an API that listens there is; if it does on all addresses: on this machine's own."""
    own = _EVERYWHERE.get(host, host)
    shown = f"[{own}]" if ":" in own else own
    return f"{'https' if api.tls_certificate else 'http'}://{shown}:{port}{api.prefix}"


def api_address(api: ApiSettings) -> str:
    """Where the API is by these settings."""
    return address_of(api, api.host, api.port)


def answers(api: ApiSettings, within_s: float = 0) -> bool:
    """Whether somebody listens where these settings put the API, at the latest in so many seconds."""
    until = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((_EVERYWHERE.get(api.host, api.host), api.port), 1).close()
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.1)
        else:
            return True
