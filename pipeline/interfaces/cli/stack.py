"""Run Penstock: `up`, `status`, `doctor`, `migrate`, and Celery's own programs."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.errors import UserError
from pipeline.engine.views import money, plain
from pipeline.interfaces.cli.command import Json, all_settings, ready_context
from pipeline.interfaces.cli.output import (
    err,
    escape,
    marked,
    one_line,
    out,
    print_json,
    print_list,
    print_pairs,
    state,
)

if TYPE_CHECKING:
    from pipeline.engine.backlog import Failure
    from pipeline.operations.backlog import Reason
    from pipeline.operations.overview import Overview, Spending
    from pipeline.operations.workers import Worker
    from pipeline.settings import Settings
    from pipeline.storage.context import Context


def up(
    api: Annotated[
        bool | None, typer.Option("--api/--no-api", help="Run the REST API too. Default: PENSTOCK_API__WITH_STACK.")
    ] = None,
    gateway: Annotated[
        bool | None,
        typer.Option("--gateway/--no-gateway", help="Run a gateway for nodes too. Default: PENSTOCK_GATEWAY__ENABLED."),
    ] = None,
) -> None:
    """Run the whole stack in the foreground: Redis (unless PENSTOCK_REDIS_URL names one), workers, beat, REST API with
    the console.

    With PENSTOCK_GATEWAY__ENABLED, a gateway for inference nodes as well.

    The supervisor restarts processes that die. Ctrl-C stops in order: workers finish running work, or release it.
    """
    run_up(api, gateway)


def run_up(api: bool | None = None, gateway: bool | None = None, when_ready: Callable[[], None] = lambda: None) -> None:
    """Run the stack until a signal ends it; `api` and `gateway`: with these servers, None: as the settings say. Calls
    `when_ready` once workers are ready.

    First waits until another command's stack in this data folder ends. Raises `UserError` if `up` runs here already,
    the port of a server is taken, or the data folder is deleted while the stack runs.
    """
    import psutil

    from pipeline.engine.logs import configure
    from pipeline.nodes.settings import gateway_settings
    from pipeline.standalone.address import check_free
    from pipeline.standalone.locks import supervisor_lock
    from pipeline.standalone.supervisor import Supervisor, read_info

    settings = all_settings()
    configure(settings.log_level, as_json=settings.log_json)
    nodes = gateway_settings(settings)
    with_api = settings.api.with_stack if api is None else api
    with_gateway = nodes.enabled if gateway is None else gateway
    servers = [name for name, wanted in (("api", with_api), ("gateway", with_gateway)) if wanted]
    with supervisor_lock(settings) as lock:
        waited = False
        while not lock.acquire():
            info = read_info(settings)
            # A killed `up` leaves its file behind, and another process may hold the lock for an instant to look at it.
            if info is not None and info.mode == "up" and psutil.pid_exists(info.pid):
                raise UserError(f"already up for {settings.data_dir} (process {info.pid})", code="up")
            if not waited and info is not None:
                err.print("Another command runs a stack here; waiting until it ends …")
                waited = True
            time.sleep(0.1)

        if with_api:
            check_free(settings.api.host, settings.api.port, "PENSTOCK_API__PORT", "--no-api")
        if with_gateway:
            check_free(nodes.host, nodes.port, "PENSTOCK_GATEWAY__PORT", "--no-gateway")

        def ready() -> None:
            err.print(f"Penstock is up. Data: {escape(str(settings.data_dir))}. Ctrl-C ends it.", soft_wrap=True)
            when_ready()

        def ending() -> None:
            err.print(
                "Stopping: workers finish running work, or release it. Ctrl-C again: stop at once.", soft_wrap=True
            )

        err.print("Starting Penstock …")
        Supervisor(settings, "up", lock, servers).run(
            unused=partial(_print_addresses, settings, list(servers)), ready=ready, ending=ending
        )
    err.print("Penstock has stopped.")


def _print_addresses(settings: "Settings", silent: list[str]) -> bool:
    """Print the addresses of the servers in `silent` that listen now, and remove these from it. Always returns False,
    which tells the supervisor that the stack is in use."""
    from pipeline.standalone.address import address_in_use

    for server in list(silent):
        if not (address := address_in_use(settings, server)):
            continue
        silent.remove(server)
        if server == "api":
            err.print(f"Console: {address}/console/", soft_wrap=True)
            err.print(f"API: {address}/api/v1, described at {address}/openapi.json", soft_wrap=True)
        else:
            err.print(f"Gateway: {address}", soft_wrap=True)
    return False


def status(as_json: Json = False) -> None:
    """Show every flow's work by state, what waits and why, failures, queues, workers, and providers' cost today."""
    from dataclasses import asdict

    from pipeline.operations.overview import overview

    context = ready_context()
    snapshot = overview(context)
    kinds = {kind: by_state for counted in snapshot.counted.values() for kind, by_state in counted.items()}
    hour, queues = snapshot.last_hour, snapshot.fleet.queues if snapshot.fleet else None
    workers = [worker.id for worker in snapshot.fleet.workers] if snapshot.fleet else []
    if as_json:
        print_json(
            {
                **kinds,
                "last_hour": asdict(hour) | {"failure_rate": round(hour.failure_rate, 4)},
                "queues": queues,
                "workers": workers,
                "last_sweep_s": snapshot.fleet.last_sweep_s if snapshot.fleet else None,
                "sweep_problem": snapshot.fleet.sweep_problem if snapshot.fleet else "",
                "spending": plain(snapshot.spending),
                "waiting": [plain(wait) | {"count": wait.count} for wait in snapshot.waiting],
                "minutes": plain(snapshot.minutes),
                "failures": plain(snapshot.failures),
                "data_dir": context.settings.data_dir,
            }
        )
    else:
        _show_status(kinds, snapshot, queues, workers, context)


def _show_status(
    kinds: dict[str, dict[str, int]],
    snapshot: "Overview",
    queues: dict[str, int] | None,
    workers: list[str],
    context: "Context",
) -> None:
    hour = snapshot.last_hour
    counted = [
        (kind.replace("_", " "), "  ".join(f"{state(name)} {number:,}" for name, number in by_state.items()) or "none")
        for kind, by_state in kinds.items()
    ]
    throughput = (
        f"{hour.finished:,} attempts, {hour.per_minute:,} pages/min, {hour.mean_ms:,.0f} ms a page, "
        f"{hour.failure_rate:.1%} failed"
    )
    waiting = "  ".join(f"{name} {number:,}" for name, number in (queues or {}).items())
    away = "Redis is not reachable" if context.online and queues is None else "not running"
    closed = snapshot.fleet.closed if snapshot.fleet else []
    idle = "none; `penstock up` starts them, `penstock convert` for as long as it needs them"
    if context.settings.redis_url:
        idle = "none; start some with `penstock worker`, or `penstock up`" if snapshot.fleet else "not known"
    print_pairs(
        [
            *counted,
            ("last hour", throughput if hour.finished else "no attempts"),
            ("queues", waiting or away),
            *([("closed", "\n".join(map(one_line, closed)))] if closed else []),
            *([("waiting", "\n".join(map(_waits, snapshot.waiting)))] if snapshot.waiting else []),
            *([("failed last", "\n".join(map(_failed, snapshot.failures)))] if snapshot.failures else []),
            ("workers", "\n".join(map(one_line, workers)) or idle),
            *([("sweeper", snapshot.fleet.sweep_problem)] if snapshot.fleet and snapshot.fleet.sweep_problem else []),
            *([("spent today", "\n".join(map(_spent, snapshot.spending)))] if snapshot.spending else []),
            ("data", one_line(str(context.settings.data_dir))),
        ]
    )


def _waits(why: "Reason") -> str:
    """A line about waiting units: their number, the reason, and the time when the first of them continues."""
    from pipeline.interfaces.cli.times import local, zone_of_here

    units = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in why.units.items())
    until = f", until {local(why.until, zone_of_here())}" if why.until else ""
    return f"{units}: {one_line(why.words)}{until}"


def _failed(failure: "Failure") -> str:
    return f"{one_line(failure.name)}: {one_line(failure.words)}"


def _spent(on: "Spending") -> str:
    """A line about the cost of a provider's current day, and the end of that day in this machine's time zone."""
    from pipeline.interfaces.cli.times import local, zone_of_here

    cap = f" of {money(on.cap)}" if on.cap else ""
    ends = local(on.resets_at, zone_of_here())[:16]
    return f"{one_line(on.provider)} {money(on.today)}{cap}, in the day that ends {ends} (local time)"


def workers(as_json: Json = False) -> None:
    """List live workers: their start, their busy slots, and their jobs."""
    from pipeline.interfaces.cli.times import local, zone_of_here
    from pipeline.operations.overview import fleet

    live = fleet(ready_context())
    if live is None:
        raise UserError("Redis is down, so workers are unknown: `penstock up` starts it", code="offline")
    from pipeline.engine.presence import NoWorker

    zone = zone_of_here()

    def cells(worker: "Worker") -> list[str]:
        jobs = "\n".join(f"{job.units} × {job.work} of {one_line(job.scope)}" for job in worker.jobs)
        busy = f"{worker.busy} of {worker.slots}" if worker.slots else str(worker.busy)
        return [one_line(worker.name), str(worker.process), local(worker.since, zone), busy, jobs]

    columns = ("WORKER", "PROCESS>", "SINCE", "BUSY>", "DOES?")
    print_list(live.workers, columns, cells, as_json=as_json, none=NoWorker().reason)


def doctor(
    provider: Annotated[
        str,
        typer.Option(metavar="NAME", help="Let this provider read a test page instead, and judge its reply. It costs."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Check versions, settings, database, Redis, flows and providers; say how to fix each fault (exit code 1)."""
    from pipeline.operations.providers import FAIL

    if provider:
        from pipeline.standalone import provider_trial

        with err.status(marked(f"{one_line(provider)} reads a page …")):
            results = provider_trial.checks(all_settings(), provider)
    else:
        from pipeline.standalone.doctor import checks

        results = checks(all_settings())
    if as_json:
        print_json(results)
    else:
        marks = {"ok": "[green]ok  [/green]", "warn": "[yellow]warn[/yellow]", "fail": "[red]FAIL[/red]"}
        width = max(len(check.name) for check in results)
        for check in results:
            out.print(f"{marks[check.result]}  {check.name:<{width}}  {escape(check.found)}", soft_wrap=True)
            if check.advice:
                out.print(f"      {'':<{width}}  → {escape(check.advice)}", soft_wrap=True)
    if any(check.result == FAIL for check in results):
        raise typer.Exit(1)


def migrate(
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Use this database and this data folder together, although they belonged to others."
        ),
    ] = False,
) -> None:
    """Bring the database that PENSTOCK_DATABASE_URL names (or the embedded one) to this version's schema.

    Database and data folder carry one installation id, from here or from first use. Commands and workers refuse to run
    where the two differ, and clean-up removes nothing: one of them is the wrong one, or its disk is not
    mounted. After a deliberate change, such as another database or a folder from a back-up, use --adopt.
    """
    from pipeline.process import get_context
    from pipeline.storage import installation, schema

    context = get_context()
    changed = schema.migrate(context.db)
    err.print(f"The database is at {schema.HEAD}." if changed else f"Nothing to do: the database is at {schema.HEAD}.")
    if adopt:
        installation.adopt(context.db, context.settings)
        err.print(f"It belongs to the data folder {escape(str(context.settings.data_dir))}.", soft_wrap=True)
    else:
        installation.check(context.db, context.settings)


def worker(
    context: typer.Context,
    role: Annotated[
        str,
        typer.Option(
            help="cpu: splits documents, converts and recognises on this machine. ai: calls all configured providers. "
            "control: launches and merges. io: reads and fetches for knowledge bases. capture: captures this machine's "
            "screens."
        ),
    ] = "",
) -> None:
    """Run a Celery worker, by role or with Celery's options: `penstock worker --role cpu`, `penstock worker -Q cpu`.

    Further options are Celery's, and override the role's: `penstock worker --role ai -c 64`. A worker of a role without
    any queues says what to configure, and waits for a signal to stop.
    """
    from pipeline.standalone.roles import NothingToDo, arguments

    _refuse_to_detach(context.args)
    if {"-h", "--help"} & set(context.args):
        typer.echo(context.get_help(), nl=False)  # print colours unchanged
        out.print("Further options, Celery's own:")
        _celery("worker", ["--help"])
        return
    if role:
        try:
            command = arguments(all_settings(), role)[1:]
        except NothingToDo as error:
            _wait_for_signal(str(error))
            return
        _celery("worker", [*command, *context.args])
        return
    queues = _queues(context.args)
    if not queues:
        # Without -Q, a worker may consume foreign queues after a reconnect.
        roles = "or ai, control, io, capture"
        raise UserError(f"name its queues: `penstock worker --role cpu` ({roles}), or -Q QUEUES", code="usage")
    _check_queues(queues)
    _celery("worker", context.args)


def _refuse_to_detach(arguments: list[str]) -> None:
    """Refuse `--detach`: Celery would start `python -m celery` without our application, in the current folder."""
    if any(argument == "--detach" or argument.startswith("-D") for argument in arguments):
        raise UserError("a worker cannot detach itself: run it under systemd or the like, or with nohup", code="usage")


def _queues(arguments: list[str]) -> list[str]:
    """The queues that `-Q` names."""
    names: list[str] = []
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument in {"-Q", "--queues"}:
            names += following.split(",")
        elif argument.startswith(("-Q", "--queues=")):
            names += argument.removeprefix("-Q").removeprefix("--queues=").split(",")
    return [name.strip() for name in names if name.strip()]


def _check_queues(names: list[str]) -> None:
    from pipeline.flows import gate_registry
    from pipeline.providers import registry

    settings = all_settings()
    known = gate_registry(settings).names
    for name in names:
        _, _, provider = name.partition(".")
        if name not in known and provider and provider not in registry.names(settings):
            raise UserError(f"no queue {name}: {registry.unknown(settings, provider)}", code="usage")
        if name not in known:
            raise UserError(f"unknown queue {name}: choose from {', '.join(known)}", code="usage")


def _wait_for_signal(sentence: str) -> None:
    """Say why the worker has no work, and wait: a supervisor would restart a process that ends."""
    import signal

    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    err.print(f"penstock: {sentence}. Waiting for a signal to stop.", soft_wrap=True, markup=False)
    signal.sigwait(ends)


def beat(context: typer.Context) -> None:
    """Run Celery beat, the clock of the sweeper that cleans up after dead workers; options are Celery's."""
    _celery("beat", context.args)


def flower(context: typer.Context) -> None:
    """Run the Flower dashboard; options are Flower's. Workers need PENSTOCK_WORKER_EVENTS=true to show up there.

    It listens on 127.0.0.1. On another --address it requires a login: FLOWER_BASIC_AUTH=name:password.
    """
    from pipeline.interfaces.cli.dashboard import flower_arguments

    if {"-h", "--help"} & set(context.args):
        _celery("flower", ["--help"])
    _celery("flower", flower_arguments(context.args))


def _celery(program: str, arguments: list[str]) -> None:
    from pipeline.engine import search_path
    from pipeline.process import get_context
    from pipeline.standalone.stack import migrate_embedded

    arguments = ["--help" if argument == "-h" else argument for argument in arguments]
    if "--help" not in arguments:
        settings = all_settings()
        if not get_context().online:
            raise UserError(
                "no Redis is running here: `penstock up` starts one; PENSTOCK_REDIS_URL names another",
                code="offline",
            )
        if program != "flower":
            migrate_embedded(settings)
        elif not settings.worker_events:
            note = "PENSTOCK_WORKER_EVENTS is not set here: workers without it do not show up in Flower."
            err.print(f"[yellow]Note:[/yellow] {note}", soft_wrap=True)
    # Replace this process, so that signals and exit codes are Celery's own.
    command = search_path.program("pipeline.standalone.celery_program", program, *arguments)
    os.execve(command[0], command, search_path.environment())  # noqa: S606
