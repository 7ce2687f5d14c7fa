"""The commands and scripts of the Compose file on real servers, without Docker."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.errors import InsufficientPrivilege
from redis import AuthenticationError, Redis, RedisError

from pipeline.standalone.redis_server import find_server
from pipeline.storage.database import Database
from pipeline.storage.schema import current, migrate
from tests.support.cli import Cli, environment
from tests.support.leftovers import short_folder
from tests.support.postgres import Postgres
from tests.support.redis_server import free_port
from tests.support.tls import certificate
from tests.support.waiting import wait_until
from tests.unit.repository.test_docs import ROOT

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
PASSWORD = "0f47ac10b58cc437"


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which the test's own programs come first."""
    (tmp_path / "redis-server").symlink_to(find_server())
    return f"{tmp_path}:{os.environ['PATH']}"


def test_redis_requires_the_password_and_does_not_show_it(tmp_path: Path, path: str) -> None:
    port = free_port()
    program(tmp_path / "docker-entrypoint.sh", f'exec "$@" --port {port} --bind 127.0.0.1 --dir {tmp_path}')
    command = [word.replace("$$", "$") for word in SERVICES["redis"]["command"]]
    with subprocess.Popen(command, env={"PATH": path, "REDISCLI_AUTH": PASSWORD}, stdout=subprocess.DEVNULL) as server:
        try:
            with Redis(port=port, password=PASSWORD) as client, Redis(port=port) as stranger:
                wait_until(lambda: answers(client), 60, "Redis answers")
                with pytest.raises(AuthenticationError):
                    stranger.ping()
                config = client.config_get("appendonly") | client.config_get("maxmemory-policy")
                assert set(config.values()) == {"yes", "noeviction"}
            processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
            assert f"--port {port}" in processes or f":{port}" in processes
            assert PASSWORD not in processes
        finally:
            server.kill()


def answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


def test_penstock_s_own_role_can_migrate_and_is_not_a_superuser(postgres: Postgres) -> None:
    socket = re.search(r"host=(.+)$", postgres.url("postgres"))
    assert socket
    environment = {
        "PATH": f"{postgres.programs}:{os.environ['PATH']}",
        "PGHOST": socket[1],
        "POSTGRES_USER": "postgres",
        "POSTGRES_PASSWORD": "it's 'quoted'",
    }
    script = ROOT / "deploy" / "postgres" / "role.sh"
    subprocess.run([script], env=environment, check=True, capture_output=True)
    url = f"postgresql://penstock@/penstock?host={socket[1]}"
    database = Database(url)
    try:
        migrate(database)
        assert current(database)
    finally:
        database.dispose()
    with psycopg.connect(url, autocommit=True) as connection:
        facts = "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication FROM pg_roles WHERE rolname = current_user"
        assert connection.execute(facts).fetchone() == (False, False, False, False)
        with pytest.raises(InsufficientPrivilege):
            connection.execute("COPY (SELECT 1) TO PROGRAM 'true'")
        with pytest.raises(InsufficientPrivilege):
            connection.execute("SELECT pg_read_file('/etc/hostname')")
    with psycopg.connect(postgres.url("postgres")) as superuser:
        hashes = dict(superuser.execute("SELECT rolname, rolpassword FROM pg_authid WHERE rolcanlogin").fetchall())
    assert hashes["postgres"] is None
    assert hashes["penstock"].startswith("SCRAM-SHA-256")


def test_pin_images_writes_digests_to_env_and_keeps_its_other_lines(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    script = tmp_path / "deploy" / "pin-images"
    script.write_bytes((ROOT / "deploy" / "pin-images").read_bytes())
    script.chmod(0o755)
    env = tmp_path / ".env"
    env.write_text("POSTGRES_PASSWORD=secret\nREDIS_IMAGE=redis:7-alpine@sha256:old\n", encoding="utf-8")
    program(tmp_path / "docker", '[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo sha256:0123456')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([script], env=environment, check=True, capture_output=True)
    lines = env.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "POSTGRES_PASSWORD=secret"
    assert [*lines[1:]] == [
        "REDIS_IMAGE=redis:7-alpine@sha256:0123456",
        "POSTGRES_IMAGE=pgvector/pgvector:pg17@sha256:0123456",
        "PYTHON_IMAGE=python:3.12-slim@sha256:0123456",
    ]
    assert env.stat().st_mode & 0o777 == 0o600
    program(tmp_path / "docker", "echo unknown")
    refused = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "no digest for redis:7-alpine" in refused.stderr
    assert env.read_text(encoding="utf-8").splitlines() == lines


@pytest.mark.parametrize("with_tls", [False, True])
def test_the_health_check_of_the_gateway_follows_its_tls_setting(
    tmp_path: Path, redis_url: str, with_tls: bool
) -> None:
    folder, port = short_folder(), free_port()
    own = {"PENSTOCK_REDIS_URL": redis_url, "PENSTOCK_GATEWAY__PORT": str(port)}
    if with_tls:
        cert, key = certificate(tmp_path)
        own |= {"PENSTOCK_GATEWAY__TLS_CERTIFICATE": str(cert), "PENSTOCK_GATEWAY__TLS_KEY": str(key)}
    cli = Cli(folder, tmp_path, environment(folder, **own))
    _, *command = [word.replace("8485", str(port)) for word in SERVICES["gateway"]["healthcheck"]["test"]]
    command[0] = sys.executable

    def health_check() -> subprocess.CompletedProcess[str]:
        env = environment(folder, **own)
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    try:
        assert health_check().returncode == 1, "nothing listens yet"
        gateway = cli.start("gateway")
        gateway.wait_for("gateway.started")
        healthy = health_check()
        assert healthy.returncode == 0, healthy.stderr + gateway.output
    finally:
        cli.kill_everything()
