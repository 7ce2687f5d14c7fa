"""Decide which addresses may be connected to: a name chosen by a stranger must not lead into our own network."""

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence

from pipeline.engine.errors import UnitError
from pipeline.reading.sandbox.limits import refused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
AllowPrivate = bool | Sequence[Network]
"""The addresses allowed besides public ones: none, private and loopback ones, or those of the given networks."""

Resolve = Callable[[str, int], Sequence[str]]
"""Resolves a host and port to addresses, as text. Raises `OSError`."""

MAX_URL = 2_000
"""The longest address in ASCII characters: the width of columns."""


def _networks(names: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, names.split()))


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_6TO4 = ipaddress.ip_network("2002::/16")
_PRIVATE = _networks("10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7")
"""Private networks: `allow_private = true` opens them."""
_SPECIAL = _networks("""
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24
    203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    2001::/23 2001:db8::/32 2620:4f:8000::/48 3fff::/20
""")
"""IANA's special-purpose registries, for IPv6 within `_GLOBAL_UNICAST`. `ipaddress` may have older ones."""
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_METADATA = _networks("169.254.0.0/16 100.100.100.200/32 168.63.129.16/32 192.0.0.192/32 fd00:ec2::/32 fe80::/10")
"""Where clouds issue credentials: link-local addresses, and those of Alibaba, Azure, Oracle and Amazon (IPv6)."""
_METADATA_NAMES = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
    }
)
"""Host names of these services, refused whatever their addresses."""
_COMMON_PORTS = frozenset({80, 443})
_FIRST_FREE_PORT = 1024
_OTHER_PROTOCOLS = frozenset(
    {
        1080,
        1099,
        1433,
        1521,
        1719,
        1720,
        1723,
        2049,
        2181,
        2375,
        2376,
        2379,
        2380,
        3306,
        3389,
        3659,
        4045,
        4190,
        5060,
        5061,
        5432,
        5672,
        5900,
        5984,
        5985,
        6000,
        6379,
        6443,
        6566,
        6665,
        6666,
        6667,
        6668,
        6669,
        6679,
        6697,
        7001,
        8086,
        9042,
        9092,
        9200,
        9300,
        10080,
        10250,
        11211,
        26379,
        27017,
    }
)
"""Ports of databases, brokers and other services that may mistake a request for a command."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of `host`, each once, in the system's order of preference. Raises `OSError`."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class Lookup:
    """A lookup in a separate thread, so that a hanging lookup blocks no caller. `done` is set at its end."""

    def __init__(self, resolve: Resolve, host: str, port: int) -> None:
        self.done = threading.Event()
        self._addresses: Sequence[str] = ()
        self._error: OSError | None = None
        threading.Thread(target=self._run, args=(resolve, host, port), name="lookup", daemon=True).start()

    def _run(self, resolve: Resolve, host: str, port: int) -> None:
        try:
            self._addresses = resolve(host, port)
        except (OSError, ValueError) as error:  # ValueError: an impossible name
            self._error = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            self.done.set()

    def addresses(self, host: str) -> Sequence[str]:
        if self._error or not self._addresses:
            raise UnitError(f"The name {host} cannot be resolved; check it.", code="unknown_host")
        return self._addresses


def checked(host: str, resolved: Sequence[str], allowed: AllowPrivate) -> list[Address]:
    """Return all addresses of `host`, parsed; raise `UnitError` with code `address_refused` if a single one is not
    allowed."""
    if host.rstrip(".").lower() in _METADATA_NAMES:
        raise _refusal(host)
    addresses = []
    for text in resolved:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            raise _refusal(host) from None
        if not is_allowed(address, allowed):
            raise _refusal(host)
        addresses.append(address)
    return addresses


def is_allowed(address: Address, allowed: AllowPrivate) -> bool:
    """Whether to connect to `address`: it is public, or `allowed` names its network or is True, which means all private
    ones. A cloud's metadata service is allowed only if `allowed` names its network."""
    inner = embedded(address)
    if is_public(address):
        return True
    if isinstance(allowed, bool):
        return allowed and _within(inner, _PRIVATE) and not _within(inner, _METADATA)
    return _within(inner, allowed)


def is_public(address: Address) -> bool:
    """Whether the address is public; an IPv6 address that embeds an IPv4 address is judged by that."""
    inner = embedded(address)
    if isinstance(inner, ipaddress.IPv6Address) and inner not in _GLOBAL_UNICAST:
        return False
    return not _within(inner, _SPECIAL) and not _within(inner, _METADATA)


def _within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def embedded(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 one (mapped, 6to4 and NAT64), or the address itself."""
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
    """Raise `UnitError` with code `address_refused` for ports that web servers do not use."""
    if port in _COMMON_PORTS or (_FIRST_FREE_PORT <= port <= 65535 and port not in _OTHER_PROTOCOLS):
        return
    raise refused(f"Port {port} is not a port of web servers.", "address_refused")


def _refusal(host: str) -> UnitError:
    # Do not name the address: a stranger must not learn what our names resolve to.
    return refused(f"The address of {host} is not public, so nothing is fetched from it.", "address_refused")
