"""Penstock imports no module from the current folder, whatever the folder and PYTHONPATH contain."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.cli import RUN_S, Cli, environment, new_pdf
from tests.support.installed import ROOT, Installed, install_checkout
from tests.support.leftovers import short_folder
from tests.support.redis_server import free_port
from tests.support.waiting import wait_until

MARK = "imported.txt"
HOSTILE = """with open({mark!r}, "a") as mark:
    mark.write(__name__ + "\\n")
raise ImportError("a module of the current folder")
"""
SETTINGS = {
    "PENSTOCK_API__WITH_STACK": "true",
    "PENSTOCK_GATEWAY__ENABLED": "true",
    "PENSTOCK_GATEWAY__PORT": "0",
    "CELERY_BROKER_URL": "redis://nowhere.invalid/0",
    "APP": "another",
}
STARTS = "import re, sys; print(*{name.partition('.')[0] for name in sys.modules})"
IMPORTED = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)


def printed(python: Path | str, program: str) -> set[str]:
    """Run a program; return the words that it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
    done = subprocess.run([python, "-P", "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """Every top-level module that Penstock or one of its libraries may import."""
    files = [path for folder in ("pipeline", "tasks") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in files for name in IMPORTED.findall(path.read_text(encoding="utf-8"))}
    names = {
        name
        for name in named | sys.stdlib_module_names | set(packages_distributions())
        if name.isidentifier() and not name.startswith("__")
    }
    assert {"pipeline", "tasks", "celeryconfig", "redis", "json", "onnxruntime", "PIL"} <= names
    return names - set(sys.builtin_module_names)


@pytest.fixture
def hostile(imported: set[str], tmp_path: Path) -> Path:
    """A folder with a module of each of these names, and packages that shadow Penstock's."""
    text = HOSTILE.format(mark=str(tmp_path / MARK))
    for name in imported | {"penstock_entry", "flowerconfig", "sitecustomize", "usercustomize"}:
        (tmp_path / f"{name}.py").write_text(text)
    for name in ("pipeline", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    return tmp_path


def remove_early_imports(python: Path, folder: Path) -> None:
    """Remove the modules that Python imports before our first line, which no program can prevent."""
    for name in printed(python, STARTS) | {"penstock_entry", "sitecustomize", "usercustomize"}:
        (folder / f"{name}.py").unlink(missing_ok=True)


def without_tasks(folder: Path) -> Path:
    """Copy the folder without `tasks`, since Celery loads that module from the current folder."""
    other = folder / "other"
    other.mkdir()
    for path in folder.glob("*.py"):
        if path.name != "tasks.py":
            shutil.copy(path, other)
    shutil.copytree(folder / "pipeline", other / "pipeline")
    return other


@pytest.fixture
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install_checkout(tmp_path_factory.mktemp("checkout") / "venv")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    folder = short_folder()
    yield folder
    Cli(folder, folder, {}).kill_everything()
    shutil.rmtree(folder, ignore_errors=True)


def run_programs(checkout: Installed, env: dict[str, str], folder: Path, log: Path) -> None:
    """Run Celery's programs in `folder`, and make the worker restart itself."""
    with log.open("w") as written:
        programs = [
            subprocess.Popen(
                [checkout.penstock, *command],
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
            )
            for command in (["worker", "-Q", "cpu", "-P", "solo"], ["beat"], ["flower", f"--port={free_port()}"])
        ]
        wait_until(lambda: log.read_text().count(" ready.") == 1, RUN_S, "the worker is ready", last=log.read_text)
        programs[0].send_signal(signal.SIGHUP)  # the worker restarts itself
        wait_until(
            lambda: log.read_text().count(" ready.") == 2, RUN_S, "the restarted worker is ready", last=log.read_text
        )
        wait_until(lambda: "Connected to redis" in log.read_text(), RUN_S, "Flower runs", last=log.read_text)
        for process in programs:
            process.terminate()
            process.wait(RUN_S)


@pytest.fixture
def env(data_dir: Path) -> dict[str, str]:
    variables = {**environment(data_dir), **SETTINGS, "PENSTOCK_API__PORT": str(free_port())}
    variables.pop("PYTHONPATH", None)
    return variables


def run(
    installed: Installed, env: dict[str, str], folder: Path, *arguments: str | Path, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `penstock` with these arguments in `folder` with this `PYTHONPATH`."""
    env = env if path is None else {**env, "PYTHONPATH": path}
    command = [str(installed.penstock), *map(str, arguments)]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False)


def test_a_wheel_is_complete_and_imports_nothing_from_the_current_folder(
    wheel: Installed, hostile: Path, data_dir: Path, env: dict[str, str]
) -> None:
    remove_early_imports(wheel.python, hostile)
    report, out = new_pdf(data_dir / "report.pdf"), data_dir / "report.md"
    done = run(wheel, env, hostile, "convert", report, "-o", out, path=":")
    assert done.returncode == 0, done.stderr
    assert out.read_text()
    assert not (hostile / MARK).exists(), (hostile / MARK).read_text()


def test_a_stack_and_its_commands_import_nothing_from_the_current_folder(
    checkout: Installed, hostile: Path, data_dir: Path, env: dict[str, str]
) -> None:
    subprocess.run(
        [checkout.python, "-c", "import tasks"], env=env, cwd=hostile, stderr=subprocess.DEVNULL, check=False
    )
    (hostile / MARK).unlink()  # the programs still run
    assert run(checkout, env, hostile, "--help").returncode == 0
    assert not (hostile / MARK).exists()
    remove_early_imports(checkout.python, hostile)

    up = subprocess.Popen(
        [str(checkout.penstock), "up"],
        env={**env, "PYTHONPATH": ":"},
        cwd=hostile,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    report, out = new_pdf(data_dir / "report.pdf"), data_dir / "report.md"
    done = run(checkout, env, hostile, "convert", report, "-o", out, path=".")
    assert done.returncode == 0, done.stderr
    assert out.read_text()
    note = data_dir / "note.md"
    note.write_text("# A note\n\nIt is read by a process of its own.\n")
    assert run(checkout, env, hostile, "kb", "create", "notes").returncode == 0
    done = run(checkout, env, hostile, "kb", "add", "notes", note, "--wait", path=".:")
    assert done.returncode == 0, done.stderr
    for program in ("worker", "beat"):
        assert f"Usage: celery {program}" in run(checkout, env, hostile, program, "--help", path=":").stdout
    assert "cannot detach" in run(checkout, env, hostile, "worker", "-Q", "cpu", "-DP", "threads").stderr
    celery = subprocess.run(
        [checkout.python, "-P", "-m", "celery", "-A", "tasks", "report"],
        env=env,
        cwd=without_tasks(hostile),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert "celery:" in celery.stdout, celery.stderr
    run_programs(checkout, env, hostile, data_dir / "programs.log")
    up.terminate()
    assert up.wait(RUN_S) == 0
    assert not (hostile / MARK).exists(), (hostile / MARK).read_text()
