"""The checks of `penstock doctor`, and the facts that the API and the console show of this installation."""

import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import linux, privacy
from pipeline.engine.connection import ask_sentinels, reach
from pipeline.engine.errors import PenstockError, UserError
from pipeline.engine.nouns import count
from pipeline.engine.presence import Presence
from pipeline.engine.wire import VIEW
from pipeline.flows import flows
from pipeline.nodes import service
from pipeline.nodes.settings import gateway_settings
from pipeline.nodes.views import NodeStatus
from pipeline.operations.overview import sweep_problem
from pipeline.operations.providers import FAIL, OK, WARN, Check, provider_check
from pipeline.process import new_context
from pipeline.providers import gates, registry
from pipeline.reading.sandbox import child
from pipeline.settings import Settings, config_path
from pipeline.standalone import redis_server
from pipeline.standalone.redis_version import FAULTS, Version, of_program
from pipeline.standalone.supervisor import read_info
from pipeline.storage import database_url, installation
from pipeline.storage.context import Context
from pipeline.storage.footprint import Footprint, footprint
from pipeline.storage.schema import HEAD, current
from pipeline.storage.tables import database_bytes, table_sizes

LOW_DISK_BYTES = 1_000_000_000
_GATEWAY_PATIENCE_S = 5.0
_REDIS_ADVICE = "start it, or check PENSTOCK_REDIS_URL"


QUICK = ("packages", "settings", "data folder", "database", "installation", "redis", "workers", "flows")
"""Checks that contact no provider and no other machine, and do not count the rows of every table."""


def checks(settings: Settings, only: Collection[str] = ()) -> list[Check]:
    """Run all checks, or those with the names in `only`, in that order; return their results. All checks come in the
    order in which to fix problems. A check that raises an error of Penstock, the system, the database or Redis has
    failed."""
    results: list[Check] = []
    runners: dict[str, tuple[Callable[[Settings], Iterator[Check]], str]] = {
        "packages": (_versions, ""),
        "settings": (_settings, ""),
        "data folder": (_folder, "set PENSTOCK_DATA_DIR to a folder that you may write to"),
        "database": (_database, "check PENSTOCK_DATABASE_URL"),
        "installation": (_installation, ""),
        "tables": (_tables, ""),
        "redis": (_redis, _REDIS_ADVICE),
        "workers": (_workers, ""),
        "flows": (_flows, ""),
        "gateway": (_gateway, "check PENSTOCK_GATEWAY__REDIS__URL and …__CLUSTER_URLS"),
        "readers": (_readers, "look at this machine's memory"),
        "providers": (_providers, ""),
    }
    for name in only or runners:
        run, advice = runners[name]
        try:
            results.extend(run(settings))
        except (PenstockError, OSError, SQLAlchemyError, RedisError) as error:
            results.append(Check(name, FAIL, str(error).splitlines()[0], advice))
    return results


def _versions(_: Settings) -> Iterator[Check]:
    enough = sys.version_info >= (3, 11)
    yield Check(
        "python", OK if enough else FAIL, platform.python_version(), "" if enough else "use Python 3.11 or newer"
    )
    versions = []
    for package in ("penstock", "celery", "kombu", "redis", "sqlalchemy", "pypdfium2", "rapidocr"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Check(package, FAIL, "not installed", "`make setup` in Penstock's folder")
    yield Check("packages", OK, ", ".join(versions))


def _settings(settings: Settings) -> Iterator[Check]:
    config = config_path()
    yield Check("settings", OK, f"{config} {'read' if config.is_file() else '(none)'}")
    try:
        registry.check(settings, settings.provider)
    except PenstockError as error:
        yield Check("default provider", FAIL, str(error))
    else:
        yield Check("default provider", OK, settings.provider)


def _folder(settings: Settings) -> Iterator[Check]:
    folder = settings.data_dir
    folder.mkdir(parents=True, exist_ok=True, mode=privacy.PRIVATE_FOLDER)
    writable = os.access(folder, os.W_OK | os.X_OK)
    yield Check("data folder", OK if writable else FAIL, str(folder), "" if writable else "set PENSTOCK_DATA_DIR")
    status = folder.stat()
    owner = f"mode {stat.S_IMODE(status.st_mode):o}, of user {status.st_uid}"
    if privacy.is_open(folder):
        if privacy.close(folder, settings.private_names):
            yield Check("data folder", WARN, f"others could read it ({owner}); now they cannot")
        else:
            yield Check("data folder", WARN, f"others can read it ({owner})", f"chmod 700 {folder}, or use another")
    free = shutil.disk_usage(folder).free
    low = free < LOW_DISK_BYTES
    yield Check("disk", WARN if low else OK, f"{free / 1e9:.1f} GB free", "free some space" if low else "")


def _database(settings: Settings) -> Iterator[Check]:
    db = new_context(settings).db
    shown = database_url.shown(db.url)
    try:
        at = current(db)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        yield Check("database", FAIL, f"{shown}: {reason}", "start it, or check PENSTOCK_DATABASE_URL")
        return
    finally:
        db.dispose()
    yield Check("database", OK, shown)
    if at == HEAD:
        yield Check("schema", OK, HEAD)
    elif settings.embedded_database:
        yield Check("schema", OK, f"{at or 'none yet'}; commands migrate it")
    else:
        yield Check("schema", FAIL, at or "none yet", "run `penstock migrate`")


def _is_current(context: Context) -> bool:
    """Whether the database can be reached and has this version's schema. If not, its own check reports that."""
    try:
        return current(context.db) == HEAD
    except (UserError, SQLAlchemyError):
        return False


def _installation(settings: Settings) -> Iterator[Check]:
    context = new_context(settings)
    if not _is_current(context):
        return
    pair = installation.read_pair(context.db, settings)
    context.db.dispose()
    if pair.problem:
        yield Check("installation", FAIL, pair.problem, installation.ADVICE)
    else:
        yield Check("installation", OK, (pair.folder or "")[:8] or "gets its id on first use")


def _tables(settings: Settings) -> Iterator[Check]:
    """Yield the size of every table with rows; nothing unless the schema is current."""
    context = new_context(settings)
    if not _is_current(context):
        return
    sizes = table_sizes(context.db)
    context.db.dispose()
    for table in sizes:
        size = "" if table.bytes is None else f", {table.bytes / 1e3:,.0f} kB"
        rows = f"{'about ' if table.estimated else ''}{table.rows:,} {'row' if table.rows == 1 else 'rows'}"
        yield Check(f"table {table.name}", OK, f"{rows}{size}")


def _redis(settings: Settings) -> Iterator[Check]:
    if settings.embedded_redis:
        program = redis_server.find_server()
        own = of_program(Path(program))
        exposed = f"; {FAULTS}: here only this user" if own.has_known_faults else ""
        advice = "Penstock uses a newer redis-server or valkey-server on PATH" if exposed else ""
        yield Check("redis-server", OK, f"{own}, {program}{exposed}", advice)
        if not redis_server.is_up(settings):
            yield Check("redis", OK, "not running; commands start it", "`penstock up` keeps it running")
            return
    yield from _sentinels(settings)
    try:
        reach(settings.effective_redis_url)
        client = new_context(settings).redis
        info = client.info("server")
        policy = client.config_get("maxmemory-policy").get("maxmemory-policy")
        durable = client.config_get("appendonly").get("appendonly") == "yes"
    except RedisError as error:
        advice = "end that process: the next command starts another" if settings.embedded_redis else _REDIS_ADVICE
        yield Check("redis", FAIL, str(error).partition(" : <")[0], advice)
        return
    yield Check("redis", OK, f"version {info['redis_version']} at {settings.redis.shown}")
    server = Version.of(info.get("valkey_version", info["redis_version"]), info.get("server_name", "redis"))
    if not settings.embedded_redis and server.has_known_faults:
        yield Check("redis version", WARN, f"{server}: {FAULTS}", "update it, unless your distribution has patched it")
    if policy != "noeviction":
        yield Check("redis memory", WARN, f"maxmemory-policy {policy}", "set noeviction: eviction loses messages")
    if not durable:
        yield Check("redis durability", WARN, "appendonly no", "set appendonly yes: a restart then loses no messages")


def _sentinels(settings: Settings) -> Iterator[Check]:
    """Yield how many sentinels agree, the master's address, and whether another server could replace it; nothing
    without sentinels."""
    views = ask_sentinels(settings.effective_redis_url)
    if not views:
        return
    agreed = [view for view in views if not view.problem]
    silent = [f"{view.sentinel}: {view.problem}" for view in views if view.problem]
    summary = "; ".join([f"{len(agreed)} of {len(views)} name a master", *silent])
    quorum = max((view.quorum for view in agreed), default=0)
    yield Check("sentinels", WARN if silent else OK, f"{summary} (quorum {quorum})", "start them" if silent else "")
    masters = sorted({view.master for view in agreed})
    if len(masters) > 1:
        yield Check(
            "redis master", WARN, f"{settings.redis.master}: {' or '.join(masters)}", "is a failover under way?"
        )
    elif masters:
        replicas = max(view.replicas for view in agreed)
        alone = "" if replicas else "add a replica: no server can replace it"
        yield Check(
            "redis master",
            WARN if alone else OK,
            f"{settings.redis.master} at {masters[0]}, {replicas} {'replica' if replicas == 1 else 'replicas'}",
            alone,
        )


def _workers(settings: Settings) -> Iterator[Check]:
    context = new_context(settings)
    if not context.online:
        yield Check("workers", OK, "none; commands start them")
        return
    try:
        reach(settings.effective_redis_url)
        alive = sorted(Presence(context.redis).alive())
        problem, _, cure = sweep_problem(context).partition(". ")
    except RedisError:
        return  # the check of Redis reports this
    info = read_info(settings)
    stack = f"; stack by process {info.pid} ({info.mode})" if info else ""
    advice = "" if alive else "start them: `penstock up`, or `penstock worker -Q …`"
    yield Check("workers", OK if alive else WARN, f"{len(alive)} alive{stack}", advice)
    if problem:
        yield Check("sweeper", WARN, problem, cure)


def _flows(settings: Settings) -> Iterator[Check]:
    context = new_context(settings)
    try:
        if not _is_current(context):
            return
        for flow in flows():
            counted = [f"{sum(by.values()):,} {kind.replace('_', ' ')}" for kind, by in flow.figures(context).items()]
            yield Check(f"flow {flow.name}", OK, ", ".join(counted))
        for setting in gates.live_settings(context):
            if setting.error:
                advice = f"`penstock settings set {setting.key} …`, or unset"
                yield Check(f"setting {setting.key}", WARN, f"ignored: {setting.error}", advice)
        if context.online:
            for name in context.gates.queues:
                if reason := gates.closed_because(context, name):
                    yield Check(f"queue {name}", WARN, f"closed: {reason}", "its work waits; see `penstock queues`")
    finally:
        context.db.dispose()


def _gateway(settings: Settings) -> Iterator[Check]:
    """Yield the state of the gateway for inference nodes; nothing if it was never used."""
    context = new_context(settings)
    try:
        if not _is_current(context) or not service.is_used(context):
            return
        own = gateway_settings(settings)
        for path in filter(None, (own.tls_certificate, own.tls_key)):
            if not os.access(path, os.R_OK):
                yield Check(
                    "gateway TLS", FAIL, f"{path} cannot be read", "check PENSTOCK_GATEWAY__TLS_CERTIFICATE, …_KEY"
                )
        if service.is_offline(context):
            return  # the check of Redis reports this
        gateway = service.status(context, _GATEWAY_PATIENCE_S)
    finally:
        context.db.dispose()
    alive = sum(instance.alive for instance in gateway.instances)
    connected = count(gateway.nodes[NodeStatus.CONNECTED], "node"), count(gateway.sessions, "session")
    summary = ", ".join((count(alive, "instance"), *connected))
    advice = "" if alive else "`penstock gateway` runs one, or `penstock up` with PENSTOCK_GATEWAY__ENABLED=true"
    if alive and not gateway.nodes[NodeStatus.CONNECTED]:
        advice = "no node does the work: run `penstock node` on a suitable machine"
    yield Check("gateway", WARN if advice else OK, summary, advice)
    if gateway.dead_letters:
        yield Check("dead letters", WARN, str(gateway.dead_letters), "`penstock dlq list` shows them")


def _readers(_: Settings) -> Iterator[Check]:
    """Yield what confines the processes that read files, as one of them reports it."""
    active = child.defences()
    advice = ""
    if linux.IS_LINUX and not {"seccomp", "Landlock"} <= {name.partition(" ")[0] for name in active}:
        advice = "use a kernel, or settings of the container, with Landlock and seccomp"
    summary = ", ".join(active) or "limits on resources, and Python's own checks alone"
    yield Check("readers", WARN if advice else OK, summary, advice)


def _providers(settings: Settings) -> Iterator[Check]:
    ocr = all(find_spec(name) for name in ("rapidocr", "onnxruntime"))
    yield Check(
        "provider local",
        OK if ocr else FAIL,
        "text layer and OCR" if ocr else "no OCR",
        "" if ocr else "pip install rapidocr onnxruntime",
    )
    for name in sorted(settings.providers):
        yield provider_check(settings, name)


@dataclass(frozen=True)
class About:
    """Facts about this installation."""

    __pydantic_config__ = VIEW
    version: str
    python: str
    data_dir: str
    database_bytes: int
    folder: Footprint
    checks: list[Check]
    """The quick checks; `penstock doctor` also asks providers and nodes."""


def about(context: Context) -> About:
    """Return the facts about this installation, with the quick checks."""
    settings = context.settings
    return About(
        version("penstock"),
        platform.python_version(),
        str(settings.data_dir),
        database_bytes(context.db),
        footprint(settings.data_dir),
        checks(settings, QUICK),
    )
