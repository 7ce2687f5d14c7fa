"""Messages of commands while no sentinel knows a living master."""

import json
from pathlib import Path

import pytest
from redis.sentinel import MasterNotFoundError
from structlog.testing import capture_logs
from typer.testing import CliRunner

from pipeline.interfaces.cli.main import _explained, app
from pipeline.storage.context import Context
from tests.support.redis_server import free_port
from tests.support.samples import text_pdf

SECRET = "Zq9very"


@pytest.fixture
def redis_url() -> str:
    """The addresses of two sentinels that are down."""
    return f"sentinel://:{SECRET}@127.0.0.1:{free_port()},127.0.0.1:{free_port()}/0?master=m&sentinel_password={SECRET}"


def test_doctor_says_which_sentinels_do_not_answer(context: Context) -> None:
    with capture_logs():
        result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    hosts = [f"{host}:{port}" for host, port in context.settings.redis.hosts]
    assert checks["sentinels"]["result"] == "warn"
    assert checks["sentinels"]["found"].startswith(f"0 of 2 name a master; {hosts[0]}: ")
    assert f"; {hosts[1]}: " in checks["sentinels"]["found"]
    assert (checks["redis"]["result"], checks["redis"]["found"]) == ("fail", "No master found for 'm'")
    assert SECRET not in result.output


def test_a_command_that_needs_redis_says_so_in_a_sentence(context: Context, tmp_path: Path) -> None:
    page = text_pdf(tmp_path / "page.pdf", [["words"]])
    with capture_logs():
        error = CliRunner().invoke(app, ["convert", str(page)]).exception
    assert isinstance(error, MasterNotFoundError)
    assert _explained(error) == "no sentinel names a live Redis master. Try `penstock doctor`."
