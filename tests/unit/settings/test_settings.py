import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretStr, ValidationError

from pipeline.settings import (
    LOCAL,
    MAX_SOCKET_PATH,
    DocumentSettings,
    ProviderProfile,
    Settings,
    UnreadableSettingsError,
    config_path,
    get_settings,
)
from pipeline.settings.providers import Price

SECRET = "sk-Zq9-very-secret-0123456789"
ANY_WORDS = """PENSTOCK_SCREENSHOTS__EXCLUDED_APPS='["…", "…"]'"""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))


def write_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "penstock.toml").write_text(text, encoding="utf-8")


def refused(**_: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings()
    return str(caught.value)


def test_nothing_needs_to_be_set(tmp_path: Path) -> None:
    settings = Settings()
    assert settings.provider == LOCAL
    assert settings.providers == {}
    assert settings.embedded_database
    assert settings.embedded_redis
    assert settings.effective_database_url == f"sqlite:///{tmp_path}/penstock.db"
    assert settings.effective_redis_url == f"unix://{tmp_path}/redis.sock?db=0"
    assert settings.broker_url == f"redis+socket://{tmp_path}/redis.sock?virtual_host=0"


def test_defaults_equal_those_that_the_design_names() -> None:
    documents = Settings().documents
    assert documents.lease_s == 5 * 60
    assert documents.page_timeout_s == 2 * 60
    assert documents.stale_temp_s == 24 * 60 * 60
    assert ProviderProfile().timeout_s == 2 * 60


def test_a_claim_outlasts_the_longest_page() -> None:
    documents = DocumentSettings()
    assert documents.lease_s > documents.page_timeout_s + documents.quantum_s + 30


def test_files_lie_in_the_three_folders_of_the_design(tmp_path: Path) -> None:
    settings = Settings()
    folders = (settings.upload_dir, settings.temp_dir, settings.output_dir)
    assert folders == (tmp_path / "uploads", tmp_path / "temp", tmp_path / "output")


def test_urls_replace_the_embedded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://db/penstock")
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://cache:6379/3")
    settings = Settings()
    assert not settings.embedded_database
    assert not settings.embedded_redis
    assert settings.effective_database_url == "postgresql://db/penstock"
    assert (settings.effective_redis_url, settings.broker_url) == ("redis://cache:6379/3", "redis://cache:6379/3")


def test_providers_come_from_nested_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PROVIDERS__OPENAI__API_KEY", SECRET)
    monkeypatch.setenv("PENSTOCK_PROVIDERS__OPENAI__MODEL", "gpt-x")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__QWEN__BASE_URL", "https://dashscope.example/v1/")
    monkeypatch.setenv("PENSTOCK_PROVIDER", "openai")
    settings = Settings()
    assert settings.provider == "openai"
    assert settings.providers["openai"].api_key.get_secret_value() == SECRET
    assert settings.providers["openai"].model == "gpt-x"
    assert settings.providers["qwen"].base_url == "https://dashscope.example/v1"


def test_the_file_in_the_data_folder_is_read(tmp_path: Path) -> None:
    write_config(
        tmp_path,
        'provider = "qwen"\n[documents]\nlease_s = 400\nbackoff_s = [1.0]\n'
        '[providers.qwen]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "qwen-vl"\n',
    )
    settings = Settings()
    assert settings.provider == "qwen"
    assert settings.documents.backoff_s == [1.0]
    assert settings.providers["qwen"].model == "qwen-vl"
    assert settings.documents.page_timeout_s == DocumentSettings().page_timeout_s


def misspelt() -> str:
    with pytest.raises(UnreadableSettingsError) as caught:
        Settings()
    return str(caught.value)


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("PENSTOCK_LOG_LEVL", "PENSTOCK_LOG_LEVEL"),
        ("PENSTOCK_DOCUMENTS__LEASE", "PENSTOCK_DOCUMENTS__LEASE_S"),
        ("PENSTOCK_DOCUMENTS_LEASE_S", "PENSTOCK_DOCUMENTS__LEASE_S"),
        ("PENSTOCK_GATEWAY_ENABLED", "PENSTOCK_GATEWAY__ENABLED"),
        ("PENSTOCK_WEBHOOK__WIDTH", "PENSTOCK_WEBHOOKS__WIDTH"),
        ("PENSTOCK_PROVIDERS__OPENAI__DAILY_SPENDCAP", "PENSTOCK_PROVIDERS__OPENAI__DAILY_SPEND_CAP"),
        ("penstock_api_port", "PENSTOCK_API__PORT"),
        ("PENSTOCK_LOG_LEVEL__DEEPER", "PENSTOCK_LOG_LEVEL"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, variable: str, nearest: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert misspelt() == f"{variable} is not a setting; did you mean {nearest}?"


def test_all_misspelt_names_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_QQQQQQ", "1")
    monkeypatch.setenv("PENSTOCK_PROVIDERS", '{"ai": {"modle": "m"}}')
    write_config(
        tmp_path, "[document]\nlease_s = 400\n[documents]\nlease = 400\n[providers.ai]\nurl = ''\n[webhooks]\nx = 1\n"
    )
    file = tmp_path / "penstock.toml"
    assert misspelt() == (
        "PENSTOCK_PROVIDERS: ai.modle is not a setting; did you mean model?; PENSTOCK_QQQQQQ is not a setting; "
        f"document in {file} is not a setting; did you mean documents?; "
        f"documents.lease in {file} is not a setting; did you mean lease_s?; "
        f"providers.ai.url in {file} is not a setting; did you mean base_url?"
    )


def test_variables_that_are_not_meant_as_settings_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "NODE_TOKEN",
        "PAPERLESS_TOKEN",
        "CORPUS",
        "SERVICE_HOST",
        "SERVICE_PORT_HTTP",
        "API_PORT_8484_TCP_ADDR",
        "WEBHOOKS__X",
    ):
        monkeypatch.setenv(f"PENSTOCK_{name}", "x")
    monkeypatch.setenv("PENSTOCK_PORT", "tcp://10.0.0.1:8484")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__AI__PRICES__GPT-4O__INPUT", "2.5")
    assert Settings().providers["ai"].prices["gpt-4o"].input == 2.5


@pytest.mark.parametrize(
    ("reported", "cost"),
    [("gpt-4o", 2.5), ("gpt-4o-2024-08-06", 2.5), ("gpt-4o-20240806", 2.5), ("gpt-4o-mini", 9.0), ("gpt-4o-0125", 2.5)],
)
def test_a_dated_name_has_the_price_of_its_model(reported: str, cost: float) -> None:
    profile = ProviderProfile(prices={"gpt-4o": Price(input=2.5), "*": Price(input=9.0)})
    assert profile.cost(reported, 1_000_000, 0) == cost


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("quota_reset", "25:00", "a time of day such as 16:30"),
        ("quota_zone", "Mars/Olympus", "no time zone Mars/Olympus"),
    ],
)
def test_a_daily_reset_that_never_comes_is_refused_at_start(field: str, value: str, advice: str) -> None:
    with pytest.raises(ValidationError, match=advice):
        ProviderProfile(**{field: value})


def test_another_file_can_be_named_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.toml"
    monkeypatch.setenv("PENSTOCK_CONFIG", str(other))
    assert config_path() == other
    assert misspelt() == f"PENSTOCK_CONFIG names {other}, which does not exist"
    other.write_text('log_level = "DEBUG"\n')
    assert Settings().log_level == "DEBUG"


def test_the_environment_wins_over_the_file_field_by_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(
        tmp_path, '[documents]\nlease_s = 400\nquantum_s = 2\n[providers.qwen]\nmodel = "from-file"\nconcurrency = 3\n'
    )
    monkeypatch.setenv("PENSTOCK_DOCUMENTS__LEASE_S", "500")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__QWEN__MODEL", "from-environment")
    settings = Settings()
    assert (settings.documents.lease_s, settings.documents.quantum_s) == (500, 2)
    assert settings.providers["qwen"].model == "from-environment"
    assert settings.providers["qwen"].concurrency == 3


@pytest.mark.parametrize(
    ("variable", "value", "field"),
    [
        ("PENSTOCK_DOCUMENTS__LEASE_S", "0", "documents.lease_s"),
        ("PENSTOCK_DOCUMENTS__LEASE_S", "soon", "documents.lease_s"),
        ("PENSTOCK_DOCUMENTS__CONVERTER_COUNT", "0", "documents.converter_count"),
        ("PENSTOCK_PROVIDERS__OPENAI__TIMEOUT_S", "-1", "providers.openai.timeout_s"),
        ("PENSTOCK_PROVIDERS__OPENAI__BASE_URL", "ftp://example.org", "providers.openai.base_url"),
        ("PENSTOCK_PROVIDERS__OPENAI__BASE_URL", "file:///etc/passwd", "providers.openai.base_url"),
        ("PENSTOCK_PROVIDERS__OPENAI__BASE_URL", "ws://127.0.0.1:8485", "providers.openai.base_url"),
        ("PENSTOCK_PROVIDERS__OPENAI__KIND", "nodes", "providers.openai.base_url"),
        ("PENSTOCK_PROVIDERS__OPENAI__KIND", "grpc", "providers.openai.kind"),
        ("PENSTOCK_PROVIDERS__OPENAI__WHEN_NO_NODE", "hope", "providers.openai.when_no_node"),
        ("PENSTOCK_SWEEP_INTERVAL_S", "0", "sweep_interval_s"),
        ("PENSTOCK_AI_CONCURRENCY", "5000", "ai_concurrency"),
        ("PENSTOCK_LOG_JSON", "perhaps", "log_json"),
        ("PENSTOCK_LOG_LEVEL", "LOUD", "log_level"),
    ],
)
def test_an_error_names_the_field(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str) -> None:
    monkeypatch.setenv(variable, value)
    assert field in refused().splitlines()


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({"presence_interval_s": 10}, "presence_ttl_s (15) must be at least twice presence_interval_s (10)"),
        ({"sweep_interval_s": 1}, "sweep_interval_s (1) must not be less than presence_interval_s (3)"),
    ],
)
def test_intervals_that_take_living_workers_for_lost_are_refused(values: dict[str, float], advice: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(advice)):
        Settings(**values)  # type: ignore[arg-type]


def test_nodes_are_shown_pages_as_recognition_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PROVIDERS__DESK__KIND", "nodes")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__DESK__BASE_URL", "ws://127.0.0.1:8485")
    assert Settings().providers["desk"].image_dpi == Settings().documents.ocr_dpi
    monkeypatch.setenv("PENSTOCK_PROVIDERS__DESK__IMAGE_DPI", "150")
    assert Settings().providers["desk"].image_dpi == 150


def test_nodes_have_the_addresses_of_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PROVIDERS__DESK__KIND", "nodes")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__DESK__BASE_URL", " ws://127.0.0.1:8485/, wss://b.example.org ,")
    desk = Settings().providers["desk"]
    assert (desk.kind, desk.base_url) == ("nodes", "ws://127.0.0.1:8485,wss://b.example.org")
    assert (desk.model, desk.when_no_node) == ("", "error")
    for wrong in ("http://a", " , ", "ws://", f"ws://user:{SECRET}@a", "ws://a:port", "ws://a,ftp://b"):
        monkeypatch.setenv("PENSTOCK_PROVIDERS__DESK__BASE_URL", wrong)
        message = refused()
        assert "wss://host" in message
        assert SECRET not in message


def test_an_error_in_the_file_names_the_field(tmp_path: Path) -> None:
    write_config(tmp_path, "[documents]\nmax_pages = 0\n")
    assert "documents.max_pages" in refused().splitlines()


def test_settings_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PROVIDERS__OPENAI__API_KEY", SECRET)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"postgresql://user:{SECRET}@db/penstock")
    monkeypatch.setenv("PENSTOCK_REDIS_URL", f"redis://:{SECRET}@cache:6379/0")
    settings = Settings()
    shown = [repr(settings), str(settings), repr(settings.model_dump()), settings.model_dump_json()]
    assert not [text for text in shown if SECRET in text]


def test_no_secret_is_in_the_error_about_another_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PROVIDERS__OPENAI__API_KEY", SECRET)
    monkeypatch.setenv("PENSTOCK_PROVIDERS__OPENAI__TIMEOUT_S", "-1")
    assert SECRET not in refused()


def test_a_profile_made_in_code_keeps_its_key_to_itself() -> None:
    profile = ProviderProfile(api_key=SecretStr(SECRET))
    assert SECRET not in repr(profile) + profile.model_dump_json()


def test_the_data_folder_is_absolute_and_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "~/penstock data/../penstock")
    assert Settings().data_dir == Path.home().resolve() / "penstock"


def test_a_path_that_no_system_takes_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "/" + "a" * 5000)
    with pytest.raises(UnreadableSettingsError, match=r"^PENSTOCK_DATA_DIR: the path is longer than 4,000 bytes"):
        Settings()


def test_a_socket_in_a_deep_folder_lies_where_the_system_allows_one(tmp_path: Path) -> None:
    deep = Settings(data_dir=tmp_path / ("d" * 120))
    other = Settings(data_dir=tmp_path / ("e" * 120))
    assert len(str(deep.redis_socket).encode()) <= MAX_SOCKET_PATH
    assert deep.redis_socket != other.redis_socket
    assert deep.redis_socket == Settings(data_dir=deep.data_dir).redis_socket


def test_a_process_reads_its_settings_once(monkeypatch: pytest.MonkeyPatch) -> None:
    get_settings.cache_clear()
    before = get_settings()
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "DEBUG")
    assert get_settings() is before
    get_settings.cache_clear()
    assert get_settings().log_level == "DEBUG"
    get_settings.cache_clear()


def test_settings_are_read_without_anything_heavy() -> None:
    heavy = "{'celery', 'sqlalchemy', 'redis', 'openai'}"
    program = f"import sys, pipeline.settings; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("variable", "value", "example"),
    [
        ("PENSTOCK_SCREENSHOTS__EXCLUDED_APPS", "keepass", """PENSTOCK_SCREENSHOTS__EXCLUDED_APPS='["keepass"]'"""),
        ("PENSTOCK_SCREENSHOTS__EXCLUDED_TITLES", "a, [b", """PENSTOCK_SCREENSHOTS__EXCLUDED_TITLES='["a", "b"]'"""),
        ("PENSTOCK_DOCUMENTS__BACKOFF_S", "5 s", "PENSTOCK_DOCUMENTS__BACKOFF_S='[5, 15]'"),
        ("PENSTOCK_PROVIDERS", SECRET, "PENSTOCK_PROVIDERS='{\"name\": …}'"),
        # A URL may hold a password, and a long value is hard to read.
        ("PENSTOCK_SCREENSHOTS__EXCLUDED_APPS", f"redis://:{SECRET}@h", ANY_WORDS),
        ("PENSTOCK_SCREENSHOTS__EXCLUDED_APPS", "[" * 50_000, ANY_WORDS),
    ],
)
def test_invalid_json_is_named_with_an_example(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, example: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnreadableSettingsError) as caught:
        Settings()
    assert str(caught.value) == f"{variable} must be JSON, like {example}"


@pytest.mark.parametrize(
    "setting", ["SCREENSHOTS__VISION_PROVIDER", "SCREENSHOTS__EMBEDDINGS_PROVIDER", "MUSIC__PROVIDER"]
)
def test_an_unknown_provider_of_a_flow_is_named_with_its_variable_and_the_command_to_add_it(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(f"PENSTOCK_{setting}", "eye")
    monkeypatch.setenv("PENSTOCK_PROVIDERS__AI__MODEL", "m")
    message = refused()
    assert f"PENSTOCK_{setting}: there is no provider 'eye' (known are ai)" in message
    assert "PENSTOCK_PROVIDERS__EYE__BASE_URL" in message


class GreetingSettings(BaseModel):
    """Settings like those in a flow's own package."""

    words: list[str] = ["hello"]
    repeats: int = Field(default=1, ge=1)
    provider: str = ""


@pytest.fixture
def greetings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.settings.SECTIONS", ("greetings",))


@pytest.mark.usefixtures("greetings")
def test_a_misspelt_setting_of_an_added_flow_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_config(tmp_path, "[greetings]\nrepeat = 2\n")
    monkeypatch.setenv("PENSTOCK_GREETINGS__WORD", "[]")
    settings = Settings()
    assert settings.sections_set == {"greetings"}
    with pytest.raises(UnreadableSettingsError) as caught:
        settings.section("greetings", GreetingSettings)
    message = str(caught.value)
    assert "PENSTOCK_GREETINGS__WORD is not a setting; did you mean PENSTOCK_GREETINGS__WORDS?" in message
    assert "greetings.repeat in" in message


@pytest.mark.usefixtures("greetings")
def test_a_further_flow_brings_its_own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Settings().section("greetings", GreetingSettings) == GreetingSettings()
    write_config(tmp_path, "[greetings]\nwords = ['hi']\nrepeats = 2\n")
    monkeypatch.setenv("PENSTOCK_GREETINGS__REPEATS", "3")
    settings = Settings()
    greetings = settings.section("greetings", GreetingSettings)
    assert (greetings.words, greetings.repeats) == (["hi"], 3)
    monkeypatch.setenv("PENSTOCK_GREETINGS__REPEATS", "4")
    assert settings.section("greetings", GreetingSettings) is greetings
    assert Settings().section("greetings", GreetingSettings).repeats == 4


@pytest.mark.parametrize(
    ("variable", "value", "error", "message"),
    [
        ("REPEATS", "0", ValidationError, "greetings.repeats\n  Input should be greater than or equal to 1"),
        ("WORDS", "hi", UnreadableSettingsError, "PENSTOCK_GREETINGS__WORDS must be JSON, like PEN"),
        (
            "PROVIDER",
            "eye",
            UnreadableSettingsError,
            "PENSTOCK_GREETINGS__PROVIDER: there is no provider 'eye'",
        ),
    ],
)
@pytest.mark.usefixtures("greetings")
def test_settings_that_a_flow_brings_are_refused_like_all_others(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, error: type[Exception], message: str
) -> None:
    monkeypatch.setenv(f"PENSTOCK_GREETINGS__{variable}", value)
    with pytest.raises(error) as caught:
        Settings().section("greetings", GreetingSettings)
    assert message in str(caught.value)
