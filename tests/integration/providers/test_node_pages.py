"""Pages converted by nodes: the request, and the accepted parts of the answer."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import SecretStr

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers import registry
from pipeline.providers.node_pages import NodePages
from pipeline.providers.protocols import Answer, PageConverter, PageRef, RejectedAnswer, Usage
from pipeline.reading.ocr import images
from pipeline.settings import ProviderProfile, Settings
from tests.support.scripted_sessions import TOKEN, ScriptedGateway, reply

PNG = b"\x89PNG\r\n\x1a\n picture"
BLOCK = {"type": "paragraph", "text": "Hi", "bbox": [1, 2.5, 3, 4]}


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with ScriptedGateway() as gateway:
        yield gateway


@pytest.fixture
def page(tmp_path: Path) -> PageRef:
    image = tmp_path / "page-3.png"
    image.write_bytes(PNG)
    return PageRef(tmp_path / "source.pdf", 3, image)


@pytest.fixture
def with_pictures(page: PageRef) -> PageRef:
    return replace(page, pictures=page.source.parent / "out" / "pictures")


def converter_at(url: str, tmp_path: Path, **profile: Any) -> PageConverter:
    desk = ProviderProfile(**{"kind": "nodes", "base_url": url, "api_key": SecretStr(TOKEN), "timeout_s": 20} | profile)
    return registry.page_converter(Settings(data_dir=tmp_path, providers={"desk": desk}), "desk")


def convert(gateway: ScriptedGateway, page: PageRef) -> Answer:
    converter = converter_at(gateway.url, page.source.parent)
    with converter.open(page.source) as reader:
        return reader.convert(page)


def refused(gateway: ScriptedGateway, page: PageRef) -> bool:
    with pytest.raises(UnitError) as caught:
        convert(gateway, page)
    return (caught.value.kind, caught.value.code) == (ErrorKind.TRANSIENT, "bad_reply")


def picture(file_format: str = "PNG", **more: Any) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(content, file_format, **more)
    return content.getvalue()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_page_is_sent_as_its_picture_and_returned_as_markdown_with_a_layout(
    gateway: ScriptedGateway, page: PageRef
) -> None:
    blocks = [
        {"type": "heading", "level": 2, "text": "A\0", "bbox": [0, 0, 9, 9], "script": "x", "page": 99},
        {"type": "list_item", "text": "b", "bbox": [0, 0, 9, 9], "marker": "1.", "depth": 1},
        {"type": "table", "text": "c", "bbox": [0, 0, 9, 9], "header": 7, "rows": [[{"text": "c", "columns": 2}]]},
        {"type": "picture", "text": "", "bbox": [0, 0, 9, 9], "link": "../../etc/passwd"},
        {"type": "markdown", "text": "e", "bbox": [0, 0, 9, 9]},
    ]
    layout = {"width": 100, "height": 200.5, "unit": "px", "blocks": blocks, "more": [1]}
    result = {"text": "## A\n", "model": "local", "layout": layout, "usage": {"input_tokens": 1}, "truncated": False}
    gateway.script.append(reply(result))
    answer = convert(gateway, page)
    [received] = gateway.seen.requests
    assert (received.request.capability, received.request.body, received.parts) == (
        "page",
        {"number": 3, "pictures": False},
        [PNG],
    )
    assert received.request.attachments[0].media_type == "image/png"
    assert (answer.text, answer.model, answer.usage) == ("## A\n", "local", Usage(1, 0))
    box = [0, 0, 9, 9]
    assert answer.layout == {
        "width": 100,
        "height": 200.5,
        "unit": "px",
        "blocks": [
            {"page": 3, "type": "heading", "text": "A\ufffd", "bbox": box, "level": 2},
            {"page": 3, "type": "list_item", "text": "b", "bbox": box, "marker": "1.", "depth": 1},
            {
                "page": 3,
                "type": "table",
                "text": "c",
                "bbox": box,
                "header": 1,
                "rows": [[{"text": "c", "rows": 1, "columns": 2}]],
            },
            {"page": 3, "type": "picture", "text": "", "bbox": box, "link": ""},
            {"page": 3, "type": "paragraph", "text": "e", "bbox": box},
        ],
    }


def test_a_page_without_a_layout_is_a_page(gateway: ScriptedGateway, page: PageRef) -> None:
    gateway.script.append(reply({"text": "", "layout": None}))
    answer = convert(gateway, page)
    assert (answer.text, answer.layout) == ("", None)


@pytest.mark.parametrize(
    "layout",
    [
        "here",
        {},
        {"width": 1, "height": 1, "blocks": "none"},
        {"width": 0, "height": 1, "blocks": []},
        {"width": 1, "height": "1", "blocks": []},
        {"width": 1e300, "height": 1, "blocks": []},
        *(
            {"width": 1, "height": 1, "blocks": [BLOCK | wrong]}
            for wrong in (
                {"bbox": [1, 2, 3]},
                {"bbox": None},
                {"bbox": [1, 2, 3, "4"]},
                {"bbox": [1, 2, 3, 1e99]},
                {"text": 7},
                {"type": None},
                {"level": 0},
                {"depth": 10**6},
                {"rows": [[{"text": "x", "rows": 10**9}]]},
                {"rows": [7]},
                {"rows": [[{"text": "x", "rows": 1000, "columns": 1000}]]},
            )
        ),
    ],
)
def test_a_layout_of_another_shape_is_refused(gateway: ScriptedGateway, page: PageRef, layout: Any) -> None:
    gateway.script.append(reply({"text": "t", "layout": layout}))
    assert refused(gateway, page)


def test_a_child_process_redraws_pictures_under_our_names_and_links_lead_to_them(
    gateway: ScriptedGateway, with_pictures: PageRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("in this process")

    monkeypatch.setattr(images, "open_picture", refuse)
    text = "![a](fig.png) ![b](pictures/page-0003-1.png) ![c](https://example.org/x.png) ![d](other.png)"
    blocks = [BLOCK | {"type": "picture", "link": "pictures/fig.png"}]
    layout = {"width": 9, "height": 9, "blocks": blocks}
    sent = [("page-0003-1.png", "image/jpeg", picture("JPEG")), ("fig.png", "image/png", picture() + b"<script>")]
    gateway.script.append(reply({"text": text, "layout": layout}, *sent))
    answer = convert(gateway, with_pictures)
    assert answer.text == (
        "![a](pictures/page-0003-2.png) ![b](pictures/page-0003-1.png) ![c](https://example.org/x.png) ![d](other.png)"
    )
    assert answer.layout
    assert answer.layout["blocks"][0]["link"] == "pictures/page-0003-2.png"
    assert with_pictures.pictures
    assert names_in(with_pictures.pictures) == ["page-0003-1.png", "page-0003-2.png"]
    for path in with_pictures.pictures.iterdir():
        assert b"<script>" not in path.read_bytes()
        with Image.open(path) as image:
            assert (image.format, image.size) == ("PNG", (20, 10))
    assert gateway.seen.requests[0].request.body["pictures"] is True


@pytest.mark.parametrize(
    "sent",
    [
        ("../../x.png", "image/png", picture()),
        ("/etc/x.png", "image/png", picture()),
        (".hidden", "image/png", picture()),
        ("a b.png", "image/png", picture()),
        ("a\\b.png", "image/png", picture()),
        ("", "image/png", picture()),
        ("x.png", "text/html", b"<script>"),
        ("x.png", "image/png", b"<script>"),
        ("x.png", "image/png", picture("JPEG")),
        ("x.svg", "image/svg+xml", b"<svg/>"),
        ("x.tiff", "image/tiff", picture("TIFF")),
        ("x.png", "image/png", picture()[:40]),
    ],
)
def test_a_picture_with_a_hostile_name_or_content_is_refused(
    gateway: ScriptedGateway, with_pictures: PageRef, sent: tuple[str, str, bytes]
) -> None:
    before = names_in(with_pictures.source.parent)
    gateway.script.append(reply({"text": "t"}, sent))
    assert refused(gateway, with_pictures)
    assert names_in(with_pictures.source.parent) == before


def test_unrequested_pictures_are_not_stored(gateway: ScriptedGateway, page: PageRef) -> None:
    gateway.script.append(reply({"text": "t"}, ("../x", "image/png", b"?")))
    assert convert(gateway, page).text == "t"
    assert names_in(page.source.parent) == ["page-3.png"]


def test_a_truncated_answer_is_an_error_that_keeps_the_paid_text(gateway: ScriptedGateway, page: PageRef) -> None:
    gateway.script.append(reply({"text": "# Half", "truncated": True}))
    with pytest.raises(RejectedAnswer) as caught:
        convert(gateway, page)
    assert caught.value.answer.text == "# Half"
    assert "page 3" in str(caught.value)


def test_the_converter_needs_pictures_and_is_worth_caching(page: PageRef) -> None:
    converter = converter_at("ws://127.0.0.1:9", page.source.parent)
    assert isinstance(converter, NodePages)
    assert (converter.name, converter.model, converter.needs_images, converter.paid) == ("desk", "", True, True)
    assert converter.survey(page.source, [1], lambda: None) == ""
    with pytest.raises(UnitError) as caught, converter.open(page.source) as reader:
        reader.convert(PageRef(page.source, 3))
    assert caught.value.code == "no_image"


def test_the_cache_key_covers_the_picture_the_model_and_the_gateway_but_not_where_the_file_lies(page: PageRef) -> None:
    def key(page: PageRef, url: str = "ws://a", **profile: Any) -> str:
        return converter_at(url, page.source.parent, **profile).cache_key(page)[0]

    assert page.image
    moved = page.image.with_name("moved.png")
    moved.write_bytes(PNG)
    first = key(page)
    assert key(PageRef(Path("other.pdf"), 9, moved)) == first
    moved.write_bytes(PNG + b"!")
    with_folder = replace(page, pictures=page.source.parent / "pictures")
    others = [
        key(PageRef(page.source, 3, moved)),
        key(page, "ws://b"),
        key(page, model="m"),
        key(with_folder),
        key(replace(with_folder, pictures=page.source.parent / "other")),
        key(replace(with_folder, number=4)),
    ]
    assert len({first, *others}) == len(others) + 1
