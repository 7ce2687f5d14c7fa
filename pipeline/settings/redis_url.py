"""The address of Redis in one URL: a server, a socket, or the sentinels that know which server is the master.

    redis://[user:password@]host[:6379][/0]
    rediss://[user:password@]host[:6379][/0][?ssl_ca_certs=/path/ca.pem&…]
    unix://[user:password@]/path/redis.sock[?db=0][&private=true]
    sentinel://[user:password@]host1[:26379],host2[:26379],…[/0]?master=NAME[&sentinel_password=…][&ssl=true&…]

Celery's form with several URLs (`sentinel://host1:26379/0;sentinel://host2:26379/0?master=NAME`) is accepted too.
Errors quote no part of the URL but names of options and hosts: it may contain a password anywhere.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, quote, unquote

SCHEMES = ("redis", "rediss", "unix", "sentinel")
PORT, SENTINEL_PORT = 6379, 26379
_TLS = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "redis": ("db", "protocol"),
    "rediss": ("db", "protocol", *_TLS),
    "unix": ("db", "protocol", "private"),
    "sentinel": ("master", "sentinel_username", "sentinel_password", "ssl", "protocol", *_TLS),
}
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:\s]*))(?::(?P<port>[0-9]{1,5}))?")
_ESCAPES = "in a password, write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A, ; as %3B"
Tls = Mapping[str, str | bool]
"""Options of an encrypted connection, as named by redis-py, kombu and Celery."""


class RedisUrlError(ValueError):
    """The problem with the URL, without any of its secrets."""


@dataclass(frozen=True)
class RedisUrl:
    """A parsed URL. Its `repr` contains no password."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    """(name, port) of the server or of the sentinels; empty for a socket."""
    path: str = ""
    """The path of the socket."""
    db: int = 0
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    """The servers' password. Sentinels have a separate one."""
    master: str = ""
    """The name under which the sentinels know the servers."""
    sentinel_username: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)
    tls: Tls = field(default_factory=dict)
    """Empty: no encryption. Applies to servers and sentinels."""
    protocol: int | None = None
    private: bool = False
    """Whether the socket's folder must be this user's alone; checked before each connection."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL. Raises `RedisUrlError`."""
        if not url.isprintable():  # bytes that are not UTF-8 are not printable, either
            raise RedisUrlError("has characters that cannot be printed")
        scheme, separator, rest = url.strip().partition("://")
        if not separator or scheme not in SCHEMES:
            raise RedisUrlError("must begin with redis://, rediss://, unix:// or sentinel://")
        # Celery's form repeats the scheme before each sentinel.
        texts = re.split(r";(?:sentinel://)?", rest) if scheme == "sentinel" else [rest]
        parts = [_Part.of(text) for text in texts]
        addresses = _addresses(scheme, [host for part in parts for host in part.hosts.split(",")])
        options = _options(scheme, _common("options", [part.query for part in parts]))
        username, password = _credentials(_common("users or passwords", [part.user for part in parts]))
        path = _common("databases" if scheme == "sentinel" else "paths", [part.path for part in parts])
        return cls(
            scheme,
            addresses,
            path=_socket(parts[0]) if scheme == "unix" else "",
            db=_db(options.get("db") or ("" if scheme == "unix" else path)),
            username=username,
            password=password,
            master=options.get("master", ""),
            sentinel_username=options.get("sentinel_username", ""),
            sentinel_password=options.get("sentinel_password", ""),
            tls=_tls(scheme, options),
            protocol=_protocol(options.get("protocol", "")),
            private=_flag(options, "private", default=False),
        )

    @property
    def shown(self) -> str:
        """The URL for people: without credentials and options."""
        return f"{self.scheme}://{self.path or ','.join(self._servers())}" + ("" if self.path else f"/{self.db}")

    @property
    def celery(self) -> str:
        """The URL for Celery, with the password, as broker and result backend. Celery takes TLS and sentinel options as
        settings.

        Each of several sentinels has the credentials: Celery uses those of the sentinel that it contacts.
        """
        user = f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@" if self.password else ""
        if self.path:
            return f"redis+socket://{user}{quote(self.path)}?virtual_host={self.db}"
        return ";".join(f"{self.scheme}://{user}{server}/{self.db}" for server in self._servers())

    def _servers(self) -> list[str]:
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts]


@dataclass(frozen=True)
class _Part:
    """The parts of a URL. Split here, since `urllib` quotes what it cannot parse, including passwords."""

    user: str
    hosts: str
    path: str
    query: str

    @classmethod
    def of(cls, text: str) -> Self:
        text, hashed, _ = text.partition("#")
        before, _, query = text.partition("?")
        place, slash, path = before.partition("/")
        user, _, hosts = place.rpartition("@")
        # An @ after the host belongs to an unescaped password. (A socket's path may contain one.)
        if hashed or "@" in query or (hosts and "@" in path):
            raise RedisUrlError(f"a special character is not escaped; {_ESCAPES}")
        return cls(user, hosts, slash + path, query)


def _addresses(scheme: str, hosts: list[str]) -> tuple[tuple[str, int], ...]:
    if scheme == "unix":
        return ()
    if scheme != "sentinel" and len(hosts) > 1:
        raise RedisUrlError(
            f"{scheme}:// names one server; sentinels know several: sentinel://host1,host2/0?master=NAME"
        )
    matches = [_HOST.fullmatch(host) for host in hosts]
    addresses = []
    for match in matches:
        port = int((match and match["port"]) or (SENTINEL_PORT if scheme == "sentinel" else PORT))
        if match is None or not 0 < port < 65536:
            raise RedisUrlError(f"a port must be a number from 1 to 65535; {_ESCAPES}")
        host = (match["six"] or match["host"]).lower()
        if not host and scheme == "sentinel":
            raise RedisUrlError("a sentinel has no host: sentinel://host1:26379,host2:26379/0?master=NAME")
        addresses.append((host or "localhost", port))
    return tuple(addresses)


def _socket(part: _Part) -> str:
    if part.hosts or part.path in {"", "/"}:
        raise RedisUrlError("unix:// needs the path of the socket, with three slashes: unix:///path/redis.sock")
    return unquote(part.path)


def _credentials(user: str) -> tuple[str, str]:
    username, _, password = user.partition(":")
    if username and not password:
        raise RedisUrlError("it has a user without a password; write a password alone as :password@host")
    return unquote(username), unquote(password)


def _common(noun: str, values: list[str]) -> str:
    """Return the value that all parts with a value share."""
    distinct = {value for value in values if value.strip("/")}
    if len(distinct) > 1:
        raise RedisUrlError(f"its parts name different {noun}")
    return distinct.pop() if distinct else ""


def _options(scheme: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = _OPTIONS[scheme]
    for name in options:
        if name in known:
            continue
        if name in _TLS:
            raise RedisUrlError(f"{name} is for encrypted connections: begin the URL with rediss://")
        raise RedisUrlError(f"it has an unknown option; {scheme}:// knows {', '.join(known)}")
    if scheme == "sentinel" and not options.get("master"):
        raise RedisUrlError("sentinel:// needs the master's name: sentinel://host1,host2/0?master=NAME")
    return options


def _db(text: str) -> int:
    text = text.strip("/")
    if text and not text.isdecimal():
        raise RedisUrlError(f"the database must be a number, such as /0; {_ESCAPES}")
    return int(text or 0)


def _protocol(text: str) -> int | None:
    if text not in {"", "2", "3"}:
        raise RedisUrlError("protocol must be 2 or 3")
    return int(text) if text else None


def _tls(scheme: str, options: Mapping[str, str]) -> Tls:
    """Return the TLS options. Certificates are verified unless the URL disables that."""
    tls_options = {name: options[name] for name in _TLS if name in options}
    wanted = scheme == "rediss" or _flag(options, "ssl", default=False)
    if not wanted:
        if tls_options:
            raise RedisUrlError(f"{next(iter(tls_options))} is for encrypted connections: add ssl=true")
        return {}
    demands = tls_options.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")
    if demands not in {"required", "optional", "none"}:
        raise RedisUrlError("ssl_cert_reqs must be required, optional or none")
    for name in _FILES:
        if name in tls_options and not Path(tls_options[name]).is_file():
            raise RedisUrlError(f"{name}: the file does not exist")
    checks = _flag(options, "ssl_check_hostname", default=demands != "none")
    files = {name: tls_options[name] for name in _FILES if name in tls_options}
    return {**files, "ssl_cert_reqs": demands, "ssl_check_hostname": checks and demands != "none"}


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in {"true", "false"}:
        raise RedisUrlError(f"{name} must be true or false")
    return value == "true"
