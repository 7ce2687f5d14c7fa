"""The promises of docker-compose.yml, the Dockerfile and .env.example, checked without Docker."""

import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from pipeline.flows import gate_registry
from pipeline.settings import ProviderProfile, ScreenshotSettings, Settings
from pipeline.standalone.roles import ROLES, arguments
from tests.unit.repository.test_docs import ROOT, unknown_variables

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"] == "penstock"}
WORKERS = {name: service for name, service in OWN.items() if service["command"][0] == "worker"}


def option(service: dict[str, Any], name: str) -> str:
    """Return the value of the option `name` in a service's command."""
    command = service["command"]
    return str(command[command.index(name) + 1])


def seconds(duration: str) -> int:
    match = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    assert match, duration
    return int(match[1] or 0) * 60 + int(match[2] or 0)


def test_the_compose_file_is_valid() -> None:
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    errors = [f"{list(error.path)}: {error.message}" for error in Draft202012Validator(schema).iter_errors(COMPOSE)]
    assert not errors


def test_each_queue_has_its_workers_and_each_worker_a_queue_that_exists() -> None:
    assert sorted(option(service, "--role") for service in WORKERS.values()) == sorted({*ROLES} - {"capture"})


def test_roles_consume_every_queue_with_the_pool_that_its_work_needs() -> None:
    watched = ScreenshotSettings(capture_sources=["screen:*"])
    settings = Settings(providers={"a": ProviderProfile(), "b": ProviderProfile()}, screenshots=watched)
    commands = {role: arguments(settings, role) for role in ROLES}
    pools = {role: command[command.index("-P") + 1] for role, command in commands.items()}
    assert pools == {"cpu": "prefork", "ai": "threads", "control": "threads", "io": "threads", "capture": "threads"}
    queues = {queue for command in commands.values() for queue in command[command.index("-Q") + 1].split(",")}
    assert queues == {"cpu", "control", "io", "capture", *gate_registry(settings).queues}


def test_flower_sees_every_worker_s_tasks() -> None:
    assert all(service["environment"]["PENSTOCK_WORKER_EVENTS"] == "true" for service in WORKERS.values())


def test_commands_are_commands_of_the_entry_point() -> None:
    from pipeline.interfaces.cli.main import app

    entry_point = re.search(
        r'^ENTRYPOINT \["(\w+)"\]$', (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert entry_point
    assert f'\n{entry_point[1]} = "' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert {service["command"][0] for service in OWN.values()} <= known


def test_nothing_is_published_beyond_this_host() -> None:
    ports = [str(port) for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8484:8484", "127.0.0.1:8485:8485", "127.0.0.1:5555:5555"]
    assert not [name for name, service in SERVICES.items() if "network_mode" in service]


def test_only_the_nodes_profile_runs_a_gateway() -> None:
    optional = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert optional == {"gateway": ["nodes"], "cli": ["cli"]}


def test_services_that_others_wait_for_say_when_they_are_ready() -> None:
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert SERVICES[name]["healthcheck"]["test"], name
            else:
                assert (name, how["condition"]) == ("migrate", "service_completed_successfully")
    assert {"redis", "postgres"} <= {name for name, service in SERVICES.items() if "healthcheck" in service}


def test_workers_and_beat_start_on_a_migrated_database() -> None:
    for service in (*WORKERS.values(), SERVICES["beat"], SERVICES["api"], SERVICES["gateway"]):
        assert set(service["depends_on"]) == {"redis", "postgres", "migrate"}


def test_all_that_runs_is_restarted_and_limited() -> None:
    assert {
        name: service["restart"] for name, service in SERVICES.items() if service["restart"] != "unless-stopped"
    } == {
        "migrate": "on-failure",
        "cli": "no",
    }
    for name, service in SERVICES.items():
        if service["restart"] == "unless-stopped":
            assert service["deploy"]["resources"]["limits"]["memory"], name


def test_stopping_a_worker_leaves_time_for_the_longest_page() -> None:
    from pipeline.settings import DocumentSettings, ProviderProfile

    documents = DocumentSettings()
    longest_s = max(documents.page_timeout_s + documents.quantum_s + 30, ProviderProfile().timeout_s)
    assert all(seconds(service["stop_grace_period"]) > longest_s for service in WORKERS.values())


def test_all_share_data_and_settings() -> None:
    for name, service in OWN.items():
        if name != "flower":
            assert service["volumes"] == ["data:/data"], name
            own = {**service["environment"], "PENSTOCK_KEYLESS": "true"}
            assert own == SERVICES["worker-cpu"]["environment"], name
    assert set(COMPOSE["volumes"]) == {"data", "postgres", "redis"}


def test_redis_persists_its_data_and_evicts_nothing() -> None:
    command = SERVICES["redis"]["command"][-1]
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


def test_a_lane_finds_a_process() -> None:
    settings = Settings()
    command = arguments(settings, "cpu")
    assert command[command.index("-c") + 1] == str(settings.documents.converter_count)


def test_secrets_come_from_outside() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|KEY$|AUTH|SECRET|TOKEN", name):
                assert not value or re.fullmatch(r"\$\{\w+:\?.*\}", value), name
    assert "penstock:${POSTGRES_PASSWORD:?" in SERVICES["worker-cpu"]["environment"]["PENSTOCK_DATABASE_URL"]
    for text in (example(), example("keys.env.example")):
        assert not re.findall(r"^#?(\w*(?:PASSWORD|KEY|AUTH)\w*)=(.+)$", text, re.MULTILINE)


def test_only_services_that_call_providers_have_their_keys() -> None:
    files = {name: [file["path"] for file in service["env_file"]] for name, service in OWN.items()}
    keyed = {"worker-ai", "worker-control", "api", "cli"}
    assert {name for name, read in files.items() if "keys.env" in read} == keyed
    for name in keyed ^ (OWN.keys() - {"flower"}):
        assert SERVICES[name]["environment"]["PENSTOCK_KEYLESS"] == "true", name
    for name in keyed:
        assert SERVICES[name]["environment"]["PENSTOCK_KEYLESS"] == "false", name
    assert not re.findall(r"^#?\w+API_KEY=", example(), re.MULTILINE)
    assert re.findall(r"^#?\w+API_KEY=", example("keys.env.example"), re.MULTILINE)
    assert not files["flower"]
    logins = [name for name, service in OWN.items() if service["environment"].get("FLOWER_BASIC_AUTH")]
    assert logins == ["flower"]
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert {".env", "keys.env"} <= set(ignored)


def test_every_connection_to_redis_has_a_password() -> None:
    urls = {service["environment"]["PENSTOCK_REDIS_URL"] for service in OWN.values()}
    assert urls == {"redis://:${REDIS_PASSWORD:?set it in .env, see .env.example}@redis:6379/0"}


def test_images_can_be_pinned() -> None:
    pins = (ROOT / "deploy" / "pin-images").read_text(encoding="utf-8")
    named = dict(re.findall(r"\b([A-Z]+_IMAGE)=([\w./:-]+)", pins))
    texts = " ".join((ROOT / name).read_text(encoding="utf-8") for name in ("docker-compose.yml", "Dockerfile"))
    used = dict(re.findall(r"\$\{([A-Z]+_IMAGE):-([\w./:-]+)\}", texts))
    assert used == named
    assert f"ARG PYTHON_IMAGE={named['PYTHON_IMAGE']}\n" in texts
    assert set(re.findall(r"^FROM (\S+)", texts, re.MULTILINE)) == {"${PYTHON_IMAGE}"}


def example(name: str = ".env.example") -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_env_example_names_all_variables_of_the_compose_file() -> None:
    variables = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    assert variables <= set(re.findall(r"^#?(\w+)=", example(), re.MULTILINE))


@pytest.mark.parametrize("name", ["docker-compose.yml", ".env.example", "keys.env.example", "Dockerfile", "Makefile"])
def test_files_name_only_settings_that_exist(name: str) -> None:
    assert not unknown_variables((ROOT / name).read_text(encoding="utf-8"))


def test_the_image_is_built_from_existing_files() -> None:
    copied = [
        source
        for line in re.findall(
            r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
        )
        for source in line.split()[:-1]
    ]
    paths = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert set(copied) == paths, "the image's sources and .dockerignore disagree"


def test_the_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (.+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert users
    assert users[-1] not in {"root", "0"}
