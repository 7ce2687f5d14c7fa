"""Which addresses we connect to: a name that a stranger chose must not lead into our own network."""

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence

from pipeline.engine.errors import UnitError
from pipeline.reading.content import refused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
AllowPrivate = bool | Sequence[Network]
"""Which addresses are allowed besides public ones: none, private and loopback ones, or those of the networks named."""

Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a host's name, as text. Raises `OSError`."""

MAX_URL = 2_000
"""Characters of an address in ASCII: what columns hold."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_6TO4 = ipaddress.ip_network("2002::/16")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_6TO4_RELAYS = ipaddress.ip_network("192.88.99.0/24")
_COMMON_PORTS = frozenset({80, 443})
_FIRST_FREE_PORT = 1024
_OTHER_PROTOCOLS = frozenset({
    1080, 1099, 1433, 1521, 1719, 1720, 1723, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 3659, 4045, 4190, 5060,
    5061, 5432, 5672, 5900, 5984, 5985, 6000, 6379, 6443, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 7001, 8086,
    9042, 9092, 9200, 9300, 10080, 10250, 11211, 26379, 27017,
})  # fmt: skip
"""Ports of databases, brokers and other services that may take a request for a command."""


def resolve(host: str, port: int) -> list[str]:
    """The addresses of `host`, each once, in the order of the system's preference. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Lookup:
    """A lookup in a thread of its own: one that hangs holds up nobody. `done` is set when there is an outcome."""

    def __init__(self, how: Resolve, host: str, port: int) -> None:
        self.done = threading.Event()
        self._found: Sequence[str] = ()
        self._error: OSError | None = None
        threading.Thread(target=self._run, args=(how, host, port), name="lookup", daemon=True).start()

    def _run(self, how: Resolve, host: str, port: int) -> None:
        try:
            self._found = how(host, port)
        except (OSError, ValueError) as error:  # ValueError: a name that no name can be
            self._error = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            self.done.set()

    def addresses(self, host: str) -> Sequence[str]:
        if self._error or not self._found:
            raise UnitError(f"The name {host} cannot be resolved; check it.", code="unknown_host")
        return self._found


def checked(host: str, found: Sequence[str], allowed: AllowPrivate) -> list[Address]:
    """The addresses of `host`, if every one may be connected to. Raises `UnitError` with code `address_refused`."""
    addresses = []
    for text in found:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            raise _refusal(host) from None
        if not is_allowed(address, allowed):
            raise _refusal(host)
        addresses.append(address)
    return addresses


def is_allowed(address: Address, allowed: AllowPrivate) -> bool:
    """Whether to connect to `address`. Link-local ones, where clouds keep their credentials, only if they are named."""
    inner = embedded(address)
    if isinstance(allowed, bool):
        if is_public(address):
            return True
        local = inner.is_private and not (inner.is_link_local or inner.is_multicast or inner.is_unspecified)
        return allowed and local
    return is_public(address) or any(inner.version == network.version and inner in network for network in allowed)


def is_public(address: Address) -> bool:
    """Whether anybody on the internet may use the address; one that stands for an IPv4 address is judged by that."""
    inner = embedded(address)
    if inner.is_multicast or inner.is_reserved or inner.is_unspecified or not inner.is_global:
        return False
    if isinstance(inner, ipaddress.IPv6Address):
        return inner in _GLOBAL_UNICAST
    return inner not in _6TO4_RELAYS


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for (mapped, 6to4 and NAT64), or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped:
        return address.ipv4_mapped
    if address in _6TO4:
        return ipaddress.IPv4Address((int(address) >> 80) & 0xFFFFFFFF)
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def check_port(port: int) -> None:
    """Raises `UnitError` with code `address_refused` for ports where no web server is."""
    if port in _COMMON_PORTS or (_FIRST_FREE_PORT <= port <= 65535 and port not in _OTHER_PROTOCOLS):
        return
    raise refused(f"Port {port} is not one of a web server.", "address_refused")


def _refusal(host: str) -> UnitError:
    # Which address it is stays unsaid: a stranger must not learn what our names resolve to.
    return refused(f"The address of {host} is not public, so nothing is fetched from it.", "address_refused")
