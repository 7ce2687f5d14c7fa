import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.engine.errors import UserError
from pipeline.providers import registry
from pipeline.providers.node_pages import NodePages
from pipeline.providers.openai_compatible import OpenAICompatible
from pipeline.providers.vision_pages import VisionConverter
from pipeline.settings import ProviderProfile, Settings
from tests.support.provider_server import ProviderServer, default_markdown

KEY = "sk-registry-0123456789"


def settings_with(tmp_path: Path, **profile: Any) -> Settings:
    values = {"base_url": "http://127.0.0.1:9/v1", "model": "m-1", "api_key": SecretStr(KEY)} | profile
    return Settings(data_dir=tmp_path, providers={"x": ProviderProfile(**values), "bare": ProviderProfile()})


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert KEY not in str(caught.value)
    return caught.value.code


def test_a_profile_s_name_gives_its_converter_and_services(tmp_path: Path) -> None:
    settings = settings_with(tmp_path)
    converter = registry.page_converter(settings, "x")
    assert isinstance(converter, VisionConverter)
    assert (converter.name, converter.model) == ("x", "m-1")
    for make in (registry.vision, registry.text, registry.embeddings):
        assert make(settings, "x").model == "m-1"
        assert make(settings, "x", "m-2").model == "m-2"


def test_local_needs_no_profile(tmp_path: Path) -> None:
    converter = registry.page_converter(settings_with(tmp_path), "local")
    assert (converter.name, converter.model, converter.paid) == ("local", "local", False)
    assert registry.page_converter(settings_with(tmp_path), "local") is converter


def test_an_unknown_provider_is_named_with_the_known_ones_and_the_way_to_add_it(tmp_path: Path) -> None:
    settings = settings_with(tmp_path)
    for make in (registry.check, registry.page_converter, registry.vision, registry.text, registry.embeddings):
        with pytest.raises(UserError) as caught:
            make(settings, "nowhere", "m")
        assert caught.value.code == "unknown_provider"
        for word in ("'nowhere'", "'local'", "'x'", "'bare'", "PENSTOCK_PROVIDERS__NOWHERE__BASE_URL"):
            assert word in str(caught.value)


def test_a_profile_without_any_model_or_without_the_key_that_it_needs_is_refused_early(tmp_path: Path) -> None:
    settings = settings_with(tmp_path)
    assert code_of(lambda: registry.check(settings, "bare")) == "no_model"
    assert code_of(lambda: registry.page_converter(settings, "bare")) == "no_model"
    assert code_of(lambda: registry.check(settings, "bare", "m")) == "no_key"
    registry.check(
        settings.model_copy(update={"keyless": True}), "bare", "m"
    )  # the worker that makes the calls has the key
    registry.check(settings_with(tmp_path, api_key=SecretStr("")), "x")  # a private machine may need no key
    registry.check(settings, "x")
    registry.check(settings, "local")


def test_an_unknown_preset_is_refused_with_the_setting_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="PENSTOCK_PROVIDERS__X__PRESET: there is no preset 'nope'"):
        registry.check(settings_with(tmp_path, preset="nope"), "x")


def test_local_has_no_other_models_and_answers_no_prompts(tmp_path: Path) -> None:
    settings = settings_with(tmp_path)
    assert code_of(lambda: registry.check(settings, "local", "m")) == "unknown_model"
    assert code_of(lambda: registry.vision(settings, "local")) == "unsupported"


def test_one_instance_serves_all_threads_until_its_profile_changes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        instances = list(pool.map(lambda _: registry.vision(settings_with(tmp_path), "x", "shared"), range(64)))
    assert len({id(service) for service in instances}) == 1
    for change in ({"api_key": SecretStr("sk-other")}, {"timeout_s": 3}, {"base_url": "http://127.0.0.1:10/v1"}):
        assert registry.vision(settings_with(tmp_path, **change), "x", "shared") is not instances[0]


def test_the_services_of_one_profile_and_model_share_their_connections(tmp_path: Path) -> None:
    settings = settings_with(tmp_path)
    services = (registry.vision(settings, "x"), registry.text(settings, "x"), registry.embeddings(settings, "x", "m-1"))
    assert len({id(service) for service in services}) == 1


def test_nodes_serve_every_port_and_may_choose_the_model(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, kind="nodes", base_url="ws://127.0.0.1:9", model="")
    registry.check(settings, "x")
    services = [make(settings, "x") for make in (registry.vision, registry.text, registry.embeddings)]
    assert len({id(service) for service in services}) == 1
    converter = registry.page_converter(settings, "x")
    assert isinstance(converter, NodePages)
    assert registry.page_converter(settings, "x") is converter
    assert registry.text(settings, "x", "m-2").model == "m-2"
    cuts = [registry.cuts_pictures(settings, name) for name in ("x", "local", "bare")]
    assert cuts == [True, True, False]


def test_no_key_is_kept_where_a_dump_would_show_it(tmp_path: Path) -> None:
    service = registry.vision(settings_with(tmp_path), "x")
    assert isinstance(service, OpenAICompatible)
    assert KEY not in repr(registry._instances)
    assert KEY not in repr(vars(service))


def test_a_converter_from_the_registry_converts(tmp_path: Path) -> None:
    image = tmp_path / "page.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n picture")
    with ProviderServer(api_key=KEY) as server:
        converter = registry.page_converter(settings_with(tmp_path, base_url=server.base_url), "x")
        with converter.open(tmp_path / "source.pdf") as reader:
            text = reader.convert(registry_page(tmp_path, image)).text
    assert text == default_markdown(image.read_bytes()).strip()


def registry_page(tmp_path: Path, image: Path) -> Any:
    from pipeline.providers.protocols import PageRef

    return PageRef(tmp_path / "source.pdf", 1, image)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_looking_up_names_imports_neither_sdk_nor_local_models() -> None:
    program = (
        "import sys, pipeline.providers.registry; print(*{'openai', 'onnxruntime', 'rapidocr'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
