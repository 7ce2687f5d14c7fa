"""pip gets uv by its hash and uv installs the locks; without uv, pip installs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.repository.test_docs import ROOT

SCRIPT = ROOT / "deploy" / "install.py"
LOCKED = ["--no-deps", "--require-hashes", "-r", "some.lock"]
PROJECT = ["--no-deps", "--no-build-isolation", "-e", "."]

# Both record their arguments. The real pip answers for its settings.
PIP = """
import json, os, sys
if "config" in sys.argv:
    del os.environ["PYTHONPATH"]
    os.execv(sys.executable, [sys.executable, "-m", "pip", *sys.argv[1:]])
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(["pip", *sys.argv[1:]]) + "\\n")
print("Collecting numpy")
sys.exit(os.environ["UV_FAILS_AT"] == "pip" and sys.argv[-1].endswith("requirements-uv.lock"))
"""
UV = """
import json, os, sys
if sys.argv[1:] == ["cache", "dir"]:
    sys.exit(print(os.environ["UV_CACHE_DIR"]))
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(["uv", *sys.argv[1:]]) + "\\n")
with open(os.environ["CALLS"] + ".environment", "w") as environment:
    json.dump(dict(os.environ), environment)
print("Resolved 1 package\\n + numpy==2.0", file=sys.stderr)
sys.exit(os.environ["UV_FAILS_AT"] == "uv")
"""


class Run:
    """A run of `deploy/install.py` with a pip and a uv that only record their calls."""

    def __init__(self, folder: Path, fails_at: str = "", **environment: str) -> None:
        for name, text in (("pip", PIP), ("uv", UV)):
            (folder / name).mkdir()
            (folder / name / "__init__.py").touch()
            (folder / name / "__main__.py").write_text(text, encoding="utf-8")
        calls = folder / "calls"
        inherited = {name: value for name, value in os.environ.items() if not re.match("INSTALLER|PIP_|UV_|SSL_", name)}
        variables = {
            "PYTHONPATH": str(folder),
            "CALLS": str(calls),
            "UV_FAILS_AT": fails_at,
            "UV_CACHE_DIR": str(folder),
        }
        run = subprocess.run(
            [sys.executable, SCRIPT, folder / "bin" / "python", *LOCKED, "--", *PROJECT],
            check=False,
            env=inherited | variables | environment,
            text=True,
            capture_output=True,
        )
        self.exit_code, self.output = run.returncode, run.stdout + run.stderr
        self.calls = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
        environment_file = Path(f"{calls}.environment")
        self.uv_environment: dict[str, str] = (
            json.loads(environment_file.read_text()) if environment_file.exists() else {}
        )

    def installed_by(self, name: str) -> list[list[str]]:
        """Return the arguments of each installation into the environment."""
        installations = [call for call in self.calls if call[0] == name and "--python" in call]
        return [call[-4:] for call in installations]


def test_uv_installs_everything_and_pip_only_uv_by_its_hash(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.exit_code == 0
    assert run.installed_by("uv") == [LOCKED, PROJECT]
    (of_pip,) = [call for call in run.calls if call[0] == "pip"]
    assert of_pip[-3:] == ["--require-hashes", "-r", str(ROOT / "requirements-uv.lock")]
    assert of_pip[-6:-3] == ["--only-binary", ":all:", "--no-deps"], "uv must never be compiled"
    assert "Resolved 1 package" in run.output
    assert "numpy==2.0" not in run.output, "the lock says that already"


@pytest.mark.parametrize("fails_at", ["pip", "uv"])
def test_pip_installs_the_same_where_uv_fails_and_warns_that_it_takes_longer(tmp_path: Path, fails_at: str) -> None:
    run = Run(tmp_path, fails_at)
    assert run.exit_code == 0
    assert run.installed_by("pip") == [LOCKED, PROJECT]
    assert len(run.installed_by("uv")) == (fails_at == "uv")
    assert "uv does not work here.\npip installs the packages: it takes minutes" in run.output
    assert "Collecting numpy" in run.output, "the output shows no progress"


def test_uv_is_not_installed_when_the_caller_wants_pip(tmp_path: Path) -> None:
    run = Run(tmp_path, INSTALLER="pip")
    assert run.exit_code == 0
    assert [call[0] for call in run.calls] == ["pip", "pip"]
    assert run.installed_by("pip") == [LOCKED, PROJECT]


def test_an_unknown_installer_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    run = Run(tmp_path, INSTALLER="conda")
    assert run.exit_code == 1
    assert "INSTALLER is uv or pip, not conda" in run.output
    assert run.calls == []


def test_uv_uses_pips_indexes_and_certificates(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://other.invalid/simple\ncert = /etc/our.pem\nfind-links =\n  /wheels\n  /more\n"
        "[install]\nindex-url = https://me:hidden@mirror.invalid/simple\nextra-index-url = https://extra.invalid\n",
        encoding="utf-8",
    )
    run = Run(tmp_path, PIP_CONFIG_FILE=str(file), PIP_DEFAULT_TIMEOUT="7", UV_INDEX="https://mine.invalid")
    assert run.exit_code == 0
    expected = {
        "UV_DEFAULT_INDEX": "https://me:hidden@mirror.invalid/simple",
        "UV_INDEX": "https://mine.invalid",  # the caller's own setting of uv
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/etc/our.pem",
        "UV_HTTP_TIMEOUT": "7",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert {name: run.uv_environment.get(name) for name in expected} == expected
    assert "hidden" not in run.output + json.dumps(run.calls), "a password is on a command line"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a file system that is not that of the test's folder")
def test_files_are_copied_from_a_cache_on_another_file_system(tmp_path: Path) -> None:
    assert Run(tmp_path, UV_CACHE_DIR="/proc/none/uv").uv_environment["UV_LINK_MODE"] == "copy"


def test_links_are_made_to_a_cache_on_the_same_file_system(tmp_path: Path) -> None:
    assert "UV_LINK_MODE" not in Run(tmp_path).uv_environment


def commands(name: str) -> str:
    """Return the commands of the file, one a line."""
    if name == "Makefile":
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
        dry = ["make", "--no-print-directory", "-n", "-B", "setup", "clients", "INSTALLER=pip"]
        run = subprocess.run(dry, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return run.stdout.replace("\\\n", " ")
    return (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.mark.parametrize(("name", "installations"), [("Makefile", 2), ("Dockerfile", 1)])
def test_everything_is_installed_by_the_same_script_and_files_by_their_hashes(name: str, installations: int) -> None:
    lines = commands(name)
    assert not re.findall(r"pip install", lines)
    arguments = re.findall(r"deploy/install\.py \S+ (.+)", lines)
    assert len(arguments) == installations
    locks, project = re.split(r" -- ", arguments[0])
    assert "--no-deps --require-hashes -r requirements.lock" in locks
    assert "--no-deps --no-build-isolation" in project
    assert locks.startswith("--compile "), "uv compiles only with this option, pip by default"
    assert all("-c tests/clients/constraints.txt" in line for line in arguments[1:])


def test_make_says_which_installer_is_wanted() -> None:
    assert len(re.findall(r"^INSTALLER=pip \S+ deploy/install\.py", commands("Makefile"), re.MULTILINE)) == 2


def test_the_locks_are_complete_because_installation_resolves_nothing() -> None:
    check = subprocess.run([sys.executable, "-m", "pip", "check"], check=False, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout
