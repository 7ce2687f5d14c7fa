"""The promises of the files in deploy/acceptance, and the variables of `make acceptance`, checked without Docker."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.support import named_redis
from tests.unit.repository.test_docs import ROOT

FOLDER = ROOT / "deploy" / "acceptance"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MASTERS = [name for name, service in SERVICES.items() if "--cluster-enabled" in service.get("command", [])]
TESTS = SERVICES["tests"]


def test_the_compose_file_is_valid_and_publishes_nothing() -> None:
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    assert not [error.message for error in Draft202012Validator(schema).iter_errors(COMPOSE)]
    assert not [name for name, service in SERVICES.items() if {"ports", "network_mode"} & service.keys()]


def test_three_masters_are_joined_before_the_tests_run_on_them() -> None:
    assert len(MASTERS) == 3
    script = SERVICES["join"]["command"][-1]
    assert set(re.findall(r"master-\d", script)) == set(MASTERS) == set(SERVICES["join"]["depends_on"])
    assert TESTS["depends_on"]["join"]["condition"] == "service_completed_successfully"
    healthy = [
        name
        for service in SERVICES.values()
        for name, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_healthy"
    ]
    assert set(healthy) == {*MASTERS, "single"}
    assert all(SERVICES[name]["healthcheck"]["test"] for name in healthy)


def test_the_runner_gets_the_servers_addresses_in_the_tests_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = TESTS["environment"]
    read = re.findall(r'"(PENSTOCK_TEST_REDIS_\w+)"', Path(named_redis.__file__).read_text(encoding="utf-8"))
    assert set(environment) == set(read)
    urls = environment["PENSTOCK_TEST_REDIS_CLUSTER_URLS"].split(",")
    assert urls == [f"redis://{name}:6379" for name in MASTERS]
    assert environment["PENSTOCK_TEST_REDIS_URL"] == "redis://single:6379/0"
    monkeypatch.setattr(named_redis, "MODE", environment["PENSTOCK_TEST_REDIS_MODE"])
    monkeypatch.setattr(named_redis, "URL", environment["PENSTOCK_TEST_REDIS_URL"])
    monkeypatch.setattr(named_redis, "CLUSTER_URLS", urls)
    named_redis.check()


def test_the_runners_image_has_all_files_of_the_tests() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^COPY --chown=tests (.+)$", dockerfile, re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    paths = re.findall(r"^!(.+)$", (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    assert copied == set(paths), "the image's sources and its .dockerignore disagree"
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert re.findall(r"^USER (.+)$", dockerfile, re.MULTILINE) == ["tests"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert TESTS["command"] == ["make", "acceptance"]
    assert {"acceptance", "setup"} <= set(targets)


def test_each_path_of_make_acceptance_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    match = re.search(r"^ACCEPTANCE := \$\(addprefix tests/,(.+)\)$", makefile, re.MULTILINE)
    assert match
    assert [path for path in match[1].split() if not (ROOT / "tests" / path).exists()] == []


@pytest.mark.parametrize(
    ("mode", "url", "cluster", "needed"),
    [
        ("cluster", "redis://a:6379", [], "PENSTOCK_TEST_REDIS_CLUSTER_URLS"),
        ("sentinel", "redis://a:6379", [], "PENSTOCK_TEST_REDIS_URL=sentinel"),
        ("single", "sentinel://a/0?master=m", [], "PENSTOCK_TEST_REDIS_URL=redis"),
        ("other", "", [], "single, sentinel or cluster"),
    ],
)
def test_contradictory_variables_are_refused_with_the_needed_one(
    monkeypatch: pytest.MonkeyPatch, mode: str, url: str, cluster: list[str], needed: str
) -> None:
    monkeypatch.setattr(named_redis, "MODE", mode)
    monkeypatch.setattr(named_redis, "URL", url)
    monkeypatch.setattr(named_redis, "CLUSTER_URLS", cluster)
    with pytest.raises(pytest.UsageError, match=needed):
        named_redis.check()


def test_the_line_about_the_tests_servers_shows_no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_redis, "NAMED", True)
    monkeypatch.setattr(named_redis, "ON_CLUSTER", False)
    monkeypatch.setattr(named_redis, "URL", "sentinel://:hidden@a,b/3?master=m&sentinel_password=other")
    assert named_redis.described() == "Redis: sentinel://a,b/3"
