"""`penstock up` and stacks that commands start: their start, sharing, end and recovery."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.settings import Settings
from tests.support.cli import Cli, Running, is_redis, new_pdf
from tests.support.provider_server import ProviderServer
from tests.support.waiting import wait_until

PAGES = 40


@pytest.fixture
def slow(provider: ProviderServer) -> ProviderServer:
    """A provider whose calls take long enough for an interruption."""
    provider.configure({"latency_s": 0.4})
    return provider


def start_up(cli: Cli) -> Running:
    up = cli.start("up")
    up.wait_for("Penstock is up")
    return up


def submit_to(cli: Cli, pages: int) -> None:
    """Submit a new document for the provider `ai`."""
    new_pdf(cli.cwd / "report.pdf", pages)
    program = "import sys; from tasks.documents import submit; submit(sys.argv[1], provider='ai')"
    assert cli.python(program, "report.pdf").code == 0


def start_convert(cli: Cli, provider: ProviderServer, *arguments: str, pages: int = PAGES) -> Running:
    """Start a `convert` and wait until it is in the middle of its pages."""
    source = cli.cwd / "report.pdf"
    if not source.exists():
        new_pdf(source, pages)
    before = len(provider.records)
    convert = cli.start("convert", "report.pdf", "--provider", "ai", *arguments)
    assert provider.wait_for_calls(before + 12, 90), convert.output
    return convert


def supervisor_of(cli: Cli) -> psutil.Process:
    process = wait_until(lambda: cli.supervisor, 90, "the stack is up")
    assert process is not None
    return psutil.Process(process["pid"])


def redis_servers(cli: Cli) -> list[int]:
    return [process.pid for process in cli.processes() if is_redis(process)]


def test_ctrl_c_ends_up_in_order_and_gives_back_every_claim(alone: Cli, slow: ProviderServer) -> None:
    slow.configure({"latency_s": 1})  # every process gets the signal before the last page starts
    up = start_up(alone)
    submit_to(alone, PAGES)
    assert slow.wait_for_calls(10, 90), up.output
    up.interrupt()
    assert up.wait() == 0, up.output
    assert "Penstock has stopped." in up.output
    alone.wait_until_gone()
    assert alone.claims() == 0
    page = alone.run("documents", "show", alone.newest(), "--json").json()
    assert page["completed_count"] == len(slow.records) < PAGES, "pages under way are finished and paid for once"


def test_second_signal_does_not_wait_for_slow_pages(alone: Cli, provider: ProviderServer) -> None:
    provider.configure({"latency_s": 600})
    up = start_up(alone)
    submit_to(alone, 2)
    assert provider.wait_for_calls(2, 90), up.output
    up.process.terminate()
    up.wait_for("Ctrl-C again: stop at once")
    up.process.terminate()
    assert up.wait(120) == 0
    alone.wait_until_gone()
    assert alone.claims() == 0


def test_interrupted_convert_continues_at_its_page(alone: Cli, slow: ProviderServer) -> None:
    (alone.cwd / "bad.pdf").write_text("no PDF")
    convert = start_convert(alone, slow, "bad.pdf")
    convert.wait_for("bad.pdf: REFUSED: bad.pdf is not of a supported type")
    convert.interrupt()
    assert convert.wait() == 130
    assert "run the same command again to continue" in convert.output
    assert "Traceback" not in convert.output
    alone.wait_until_gone()
    assert alone.claims() == 0
    assert not (alone.cwd / "report.md").exists()
    assert alone.run("convert", "report.pdf", "--provider", "ai").code == 0
    assert len(slow.records) == PAGES


def test_killed_supervisor_is_replaced_while_convert_waits(alone: Cli, slow: ProviderServer) -> None:
    convert = start_convert(alone, slow)
    killed = supervisor_of(alone)
    children = [child for child in killed.children(recursive=True) if not is_redis(child)]
    redis = redis_servers(alone)
    killed.kill()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive, "children end when the supervisor is killed"
    assert convert.wait() == 0, convert.output
    assert len(slow.records) <= PAGES + 8, "only pages under way are requested twice"
    assert redis_servers(alone) in ([], redis), "the command took over the orphaned Redis"
    alone.wait_until_gone()


def test_next_command_recovers_from_a_killed_stack(alone: Cli, slow: ProviderServer) -> None:
    convert = start_convert(alone, slow)
    supervisor = supervisor_of(alone)
    for process in [supervisor, *supervisor.children(recursive=True)]:
        process.kill()
    convert.process.kill()
    convert.wait()
    alone.wait_until_gone()
    assert alone.claims() > 0
    assert alone.run("convert", "report.pdf", "--provider", "ai").code == 0
    assert len(slow.records) <= PAGES + 8
    alone.wait_until_gone()
    assert alone.claims() == 0
    log = (alone.data_dir / "penstock.log").read_text().splitlines()
    released = [line for line in log if "claims.given_back" in line]
    assert released, "the claims of the dead stack are released"
    assert all("stuck={'PROCESSING': " in line and "worker=" in line for line in released), released
    moved = [line for line in log if "state.changed" in line and "kind=document" in line]
    assert any("from=PROCESSING" in line and "to=READY_TO_MERGE" in line and "worker=ai@" in line for line in moved)


def test_simultaneous_commands_share_one_stack(alone: Cli, slow: ProviderServer) -> None:
    for name in ("report.pdf", "other.pdf"):
        new_pdf(alone.cwd / name, 20)
    convert = ["convert", "--provider", "ai"]
    cold = [alone.start(*convert, "report.pdf", "-o", "one.md"), alone.start(*convert, "other.pdf")]
    supervisor = supervisor_of(alone)
    late = alone.start(*convert, "report.pdf", "-o", "two.md")
    assert slow.wait_for_calls(20, 90)
    assert len(redis_servers(alone)) == 1
    assert [command.wait() for command in [*cold, late]] == [0, 0, 0]
    assert (alone.cwd / "one.md").read_text() == (alone.cwd / "two.md").read_text()
    assert len(slow.records) == 40
    psutil.wait_procs([supervisor], timeout=120)
    alone.wait_until_gone()


def test_up_waits_for_a_commands_stack_and_later_commands_use_it(alone: Cli, slow: ProviderServer) -> None:
    # Only `up` starts a worker that captures.
    captures = {
        "PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES": '["screen:*"]',
        "PENSTOCK_SCREENSHOTS__CAPTURE_INTERVAL_S": "1",
    }
    alone = alone.using(**captures, DISPLAY=None, WAYLAND_DISPLAY=None)
    convert = start_convert(alone, slow)
    up = alone.start("up")
    up.wait_for("waiting until it ends")
    assert convert.wait() == 0, convert.output
    up.wait_for("Penstock is up")
    info = alone.supervisor
    assert info == {"pid": up.process.pid, "mode": "up"}

    twice = alone.run("up")
    assert twice.code == 1
    assert f"already up for {alone.data_dir} (process {up.process.pid})" in twice.err

    new_pdf(alone.cwd / "other.pdf")
    assert alone.run("convert", "other.pdf").code == 0
    assert alone.supervisor == info, "the command used the stack and left it up"
    status = alone.run("status", "--json").json()
    assert status["documents"] == {"COMPLETED": 2}
    assert {worker.partition("@")[0] for worker in status["workers"]} == {"cpu", "ai", "control", "capture"}
    capture = alone.run("screenshots", "status", "--json").json()["capture"]
    assert capture["worker"].startswith("capture@"), capture
    assert "cannot capture the screens" in capture["error"], "there is no display"
    up.interrupt()
    assert up.wait() == 0


def test_killed_child_is_restarted(alone: Cli) -> None:
    up = start_up(alone.real())
    victim = next(child for child in psutil.Process(up.process.pid).children() if child.name() == "worker-cpu")
    redis = psutil.Process(redis_servers(alone)[0])
    victim.kill()
    redis.kill()
    up.wait_for("child=worker-cpu")
    up.wait_for("child=redis")
    new_pdf(alone.cwd / "report.pdf")
    assert alone.run("convert", "report.pdf").code == 0
    up.interrupt()
    assert up.wait() == 0


@pytest.fixture
def far(alone: Cli) -> Iterator[Cli]:
    """Runs commands on a data folder whose path fits no URL and no socket address."""
    cli = alone.using(PENSTOCK_DATA_DIR=str(alone.data_dir / ("very long # 100% ü " * 6)))
    cli = replace(cli, data_dir=Path(cli.env["PENSTOCK_DATA_DIR"]))
    yield cli
    cli.kill_everything()


def test_data_folder_may_have_any_name_and_length(far: Cli) -> None:
    new_pdf(far.cwd / "report.pdf")
    result = far.real().run("convert", "report.pdf")
    assert result.code == 0, result.err
    socket = Settings(data_dir=far.data_dir).redis_socket
    assert far.data_dir not in socket.parents
    assert socket.parent.stat().st_mode & 0o077 == 0, "no other user can reach the socket"
    assert socket.parent.stat().st_uid == os.getuid()
    far.wait_until_gone()
    socket.parent.rmdir()


def test_a_stack_whose_folder_is_deleted_ends_and_the_next_one_starts(alone: Cli) -> None:
    cli = alone.using(PENSTOCK_STACK_LINGER_S="600")
    new_pdf(cli.cwd / "report.pdf")
    assert cli.run("convert", "report.pdf").code == 0
    before = cli.processes()
    assert len(before) > 3, "the stack serves the next command"
    shutil.rmtree(cli.data_dir)
    repeated = cli.run("convert", "report.pdf", "--force")
    assert repeated.code == 0, repeated.err
    wait_until(lambda: not any(process.is_running() for process in before), 60, "the stack without a folder has ended")
    assert cli.run("convert", "report.pdf", "--force").code == 0, "its end did not harm the next stack"


def test_forked_processes_share_no_socket_or_file(alone: Cli) -> None:
    """A process that inherits another's socket would keep it open, or both would use it."""
    up = start_up(alone.real())
    new_pdf(alone.cwd / "report.pdf")
    assert alone.run("convert", "report.pdf").code == 0
    supervisor = psutil.Process(up.process.pid)
    opened = {process: open_files(process) for process in [supervisor, *supervisor.children(recursive=True)]}
    names = Counter(process.name() for process in opened)
    assert {"worker-cpu": 3, "worker-control": 1, "worker-ai": 1, "beat": 1}.items() <= names.items(), names
    owners = Counter(file for files in opened.values() for file in files if file.startswith("socket:"))
    assert set(owners.values()) == {1}, "each socket belongs to one process"
    for process, files in opened.items():
        lifelines = opened[supervisor] & files - {"/dev/null"} if process != supervisor else set()
        streams = {str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in (0, 1, 2)}
        assert lifelines <= streams, f"{process.name()} has inherited more than the supervisor's standard streams"
    up.interrupt()
    assert up.wait() == 0


def open_files(process: psutil.Process) -> set[str]:
    opened = set()
    for file in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):  # closed in between
            opened.add(str(file.readlink()))
    return opened
