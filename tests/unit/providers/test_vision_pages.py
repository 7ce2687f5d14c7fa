import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers.openai_compatible import OpenAICompatible
from pipeline.providers.prompts import PAGE_PROMPT
from pipeline.providers.protocols import Answer, PageConverter, PageRef, RejectedAnswer
from pipeline.providers.vision_pages import VisionConverter
from pipeline.settings import ProviderProfile
from tests.support.provider_server import Fault, ProviderServer, default_markdown

PNG = b"\x89PNG\r\n\x1a\n picture"


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture
def page(tmp_path: Path) -> PageRef:
    image = tmp_path / "page-3.png"
    image.write_bytes(PNG)
    return PageRef(tmp_path / "source.pdf", 3, image)


def converter_at(base_url: str, name: str = "x", **profile: Any) -> PageConverter:
    provider_profile = ProviderProfile(**({"base_url": base_url, "model": "m-1", "timeout_s": 20} | profile))
    return VisionConverter(OpenAICompatible(name, provider_profile))


def convert(converter: PageConverter, page: PageRef) -> Answer:
    with converter.open(page.source) as reader:
        return reader.convert(page)


def test_a_page_is_shown_with_the_prompt_and_its_markdown_comes_back(server: ProviderServer, page: PageRef) -> None:
    converter = converter_at(server.base_url)
    assert (converter.name, converter.model, converter.needs_images, converter.paid) == ("x", "m-1", True, True)
    assert convert(converter, page).text == default_markdown(PNG).strip()
    record = server.records[0]
    assert (record.prompt, record.image_sha256) == (PAGE_PROMPT, hashlib.sha256(PNG).hexdigest())


@pytest.mark.parametrize(
    ("head", "media_type"),
    [(PNG, "image/png"), (b"\xff\xd8\xff\xe0 jpeg", "image/jpeg"), (b"RIFF....WEBPVP8 ", "image/webp")],
)
def test_a_picture_is_sent_with_its_real_media_type(
    server: ProviderServer, page: PageRef, head: bytes, media_type: str
) -> None:
    assert page.image
    page.image.write_bytes(head)
    convert(converter_at(server.base_url), page)
    url = server.records[0].body["messages"][0]["content"][1]["image_url"]["url"]
    assert url.startswith(f"data:{media_type};base64,")


def test_an_empty_page_gives_an_empty_text(server: ProviderServer, page: PageRef) -> None:
    server.push(Fault(status=200, body={"choices": [{"message": {"content": " \n"}, "finish_reason": "stop"}]}))
    assert convert(converter_at(server.base_url), page).text == ""


def test_a_truncated_answer_is_an_error_that_keeps_the_paid_text(server: ProviderServer, page: PageRef) -> None:
    server.script.always = Fault(kind="truncated", text="# Half")
    with pytest.raises(RejectedAnswer) as caught:
        convert(converter_at(server.base_url), page)
    error = caught.value
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, "truncated")
    assert (error.answer.text, error.answer.truncated) == ("# Half", True)
    assert "page 3" in str(error)
    assert "PENSTOCK_PROVIDERS__X__MAX_TOKENS" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.answer) == (str(error), "truncated", error.answer)


def test_a_page_without_a_usable_picture_is_an_error_before_any_call(server: ProviderServer, page: PageRef) -> None:
    assert page.image
    text_file = page.image.with_name("text.txt")
    text_file.write_text("no picture")
    for image, code in (
        (None, "no_image"),
        (page.image.with_name("gone"), "image_unreadable"),
        (text_file, "bad_image"),
    ):
        with pytest.raises(UnitError) as caught:
            convert(converter_at(server.base_url), PageRef(page.source, 3, image))
        assert caught.value.code == code
    assert server.records == []


def test_the_cache_key_is_stable_and_does_not_depend_on_where_the_picture_lies(page: PageRef, tmp_path: Path) -> None:
    key, prompt_hash = converter_at("http://127.0.0.1/v1").cache_key(page)
    moved = tmp_path / "moved.png"
    moved.write_bytes(PNG)
    assert converter_at("http://127.0.0.1/v1").cache_key(PageRef(Path("other.pdf"), 9, moved)) == (key, prompt_hash)
    assert prompt_hash == hashlib.sha256(PAGE_PROMPT.encode()).hexdigest()
    assert len(key) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "http://127.0.0.2/v1"},
        {"name": "y"},
        {"model": "m-2"},
        {"preset": "chandra"},
        {"temperature": 1.0},
        {"max_tokens": 5},
    ],
)
def test_the_cache_key_changes_with_all_that_changes_the_answer(page: PageRef, change: dict[str, Any]) -> None:
    before = converter_at("http://127.0.0.1/v1").cache_key(page)[0]
    assert converter_at(**({"base_url": "http://127.0.0.1/v1"} | change)).cache_key(page)[0] != before


def test_the_cache_key_changes_with_the_picture(page: PageRef) -> None:
    converter = converter_at("http://127.0.0.1/v1")
    before = converter.cache_key(page)[0]
    assert page.image
    page.image.write_bytes(PNG + b"!")
    assert converter.cache_key(page)[0] != before
