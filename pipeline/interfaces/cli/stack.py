"""Running Penstock: `up`, `status`, `doctor`, `migrate`, and Celery's own programs."""

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipeline.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]


def up() -> None:
    """Run the whole stack in the foreground: Redis (unless PENSTOCK_REDIS_URL names one), workers and beat.

    Children that die are started again. Ctrl-C ends it in order: what runs is finished or given back.
    """
    from rich.markup import escape

    from pipeline.engine.errors import UserError
    from pipeline.engine.logs import configure
    from pipeline.interfaces.cli.output import err
    from pipeline.settings import get_settings
    from pipeline.standalone.locks import supervisor_lock
    from pipeline.standalone.supervisor import Supervisor, read_info

    settings = get_settings()
    configure(settings.log_level, as_json=settings.log_json)
    with supervisor_lock(settings) as lock:
        waited = False
        while not lock.acquire():
            info = read_info(settings)
            if info is not None and info.mode == "up":
                raise UserError(f"already up for {settings.data_dir} (process {info.pid})", code="up")
            if not waited and info is not None:
                err.print("A command has started a stack here; waiting until it is done …")
                waited = True
            time.sleep(0.1)

        def ready() -> None:
            err.print(f"Penstock is up. Data: {escape(str(settings.data_dir))}. Ctrl-C ends it.", soft_wrap=True)

        def ending() -> None:
            err.print("Stopping: pages under way are finished or given back. Ctrl-C again: at once.", soft_wrap=True)

        Supervisor(settings, "up", output=None).run(unused=lambda: False, ready=ready, ending=ending)
    err.print("Penstock has stopped.")


def status(as_json: Json = False) -> None:
    """Show what there is and how it goes: documents by state, pages a minute, failures, queues, workers."""
    from pipeline.interfaces.cli.output import print_json
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import migrate_embedded
    from pipeline.storage.context import get_context

    settings = get_settings()
    migrate_embedded(settings)
    facts = _facts(settings)
    if as_json:
        print_json(facts)
    else:
        _show(facts, online=get_context().online)


def _facts(settings: "Settings") -> dict[str, Any]:
    from dataclasses import asdict

    from redis import RedisError

    from celeryconfig import task_queues
    from pipeline.engine.metrics import queue_depths
    from pipeline.engine.presence import Presence
    from pipeline.standalone.stack import reach_redis
    from pipeline.storage.context import get_context
    from tasks.documents import figures

    context = get_context()
    found = figures()
    queues: dict[str, int] | None = None
    workers: list[str] = []
    if context.online:
        try:
            reach_redis(settings)
            queues = queue_depths(context.redis, [queue.name for queue in task_queues])
            workers = sorted(Presence(context.redis).alive())
        except RedisError:
            queues = None
    return {
        "documents": found.documents,
        "pages": found.pages,
        "last_hour": asdict(found.last_hour) | {"failure_rate": round(found.last_hour.failure_rate, 4)},
        "queues": queues,
        "workers": workers,
        "data_dir": str(settings.data_dir),
    }


def _show(facts: dict[str, Any], *, online: bool) -> None:
    from rich.markup import escape

    from pipeline.interfaces.cli.output import print_pairs, state

    hour, queues = facts["last_hour"], facts["queues"]
    waiting = "  ".join(f"{name} {n}" for name, n in (queues or {}).items())
    idle = "none; `penstock up` starts them, `penstock convert` for as long as it needs them"
    print_pairs(
        [
            ("documents", "  ".join(f"{state(name)} {n:,}" for name, n in facts["documents"].items()) or "none"),
            ("pages", "  ".join(f"{name} {n:,}" for name, n in facts["pages"].items()) or "none"),
            ("last hour", _throughput(hour) if hour["finished"] else "no attempts"),
            ("queues", "Redis is not reachable" if online and queues is None else waiting or "not running"),
            ("workers", "\n".join(facts["workers"]) or idle),
            ("data", escape(facts["data_dir"])),
        ]
    )


def _throughput(hour: dict[str, Any]) -> str:
    return (
        f"{hour['finished']:,} attempts, {hour['per_minute']:,} pages/min, {hour['mean_ms']:,.0f} ms a page, "
        f"{hour['failure_rate']:.1%} failed"
    )


def doctor(as_json: Json = False) -> None:
    """Check database, Redis, providers and versions, and say how to mend what is wrong. Exit code 1 if anything is."""
    from pipeline.interfaces.cli.doctor import FAIL, checks
    from pipeline.interfaces.cli.output import out, print_json
    from pipeline.settings import get_settings

    found = checks(get_settings())
    if as_json:
        print_json([check.__dict__ for check in found])
    else:
        from rich.markup import escape

        marks = {"ok": "[green]ok  [/green]", "warn": "[yellow]warn[/yellow]", "fail": "[red]FAIL[/red]"}
        width = max(len(check.name) for check in found)
        for check in found:
            out.print(f"{marks[check.result]}  {check.name:<{width}}  {escape(check.found)}", soft_wrap=True)
            if check.advice:
                out.print(f"      {'':<{width}}  → {escape(check.advice)}", soft_wrap=True)
    if any(check.result == FAIL for check in found):
        raise typer.Exit(1)


def migrate() -> None:
    """Bring the database that PENSTOCK_DATABASE_URL names (or the embedded one) to this version's schema."""
    from pipeline.interfaces.cli.output import err
    from pipeline.storage import schema
    from pipeline.storage.context import get_context

    changed = schema.migrate(get_context().db)
    err.print(f"The database is at {schema.HEAD}." if changed else f"Nothing to do: the database is at {schema.HEAD}.")


def worker(
    context: typer.Context,
    role: Annotated[str, typer.Option(help="cpu, ai (all queues of the configured providers) or control.")] = "",
) -> None:
    """Run a Celery worker, by role or with Celery's options: `penstock worker -Q x` is `celery -A tasks worker -Q x`.

    Further options override the role's: `penstock worker --role ai -c 64`. A worker of a role without
    any queues says what to configure, and waits until it is told to stop.
    """
    from pipeline.engine.errors import UserError
    from pipeline.settings import get_settings
    from pipeline.standalone.roles import NothingToDo, arguments

    if role:
        try:
            command = arguments(get_settings(), role)[1:]
        except NothingToDo as error:
            _wait_for_signal(str(error))
            return
        _celery("worker", [*command, *context.args])
        return
    if not any(argument.startswith(("-Q", "--queues")) or argument in {"-h", "--help"} for argument in context.args):
        # Without -Q, a worker may consume queues after a reconnect that were never meant for it.
        raise UserError("name its queues: `penstock worker --role cpu` (or ai, control), or -Q QUEUES", code="usage")
    _celery("worker", context.args)


def _wait_for_signal(sentence: str) -> None:
    """Say why there is nothing to do, and wait: a process that ended would be started again and again."""
    import signal

    from pipeline.interfaces.cli.output import err

    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    err.print(f"penstock: {sentence}. Waiting to be stopped.", soft_wrap=True, markup=False)
    signal.sigwait(ends)


def beat(context: typer.Context) -> None:
    """Run Celery beat, the clock of the sweeper that cleans up after dead workers: `celery -A tasks beat`."""
    _celery("beat", context.args)


def flower(context: typer.Context) -> None:
    """Run the Flower dashboard: `celery -A tasks flower`. Workers need PENSTOCK_WORKER_EVENTS=true to show up there."""
    _celery("flower", context.args)


def _celery(program: str, arguments: list[str]) -> None:
    from pipeline.engine.errors import UserError
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import migrate_embedded
    from pipeline.storage.context import get_context

    arguments = ["--help" if argument == "-h" else argument for argument in arguments]
    if "--help" not in arguments:
        if not get_context().online:
            raise UserError(
                "no Redis runs here: `penstock up` starts one, with workers and beat; PENSTOCK_REDIS_URL names another",
                code="offline",
            )
        if program != "flower":
            migrate_embedded(get_settings())
    # In our place: signals and exit codes are Celery's own.
    os.execv(sys.executable, [sys.executable, "-m", "celery", "-A", "tasks", program, *arguments])  # noqa: S606
