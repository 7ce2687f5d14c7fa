"""Every preset against the scripted server: the request has the documented shape, and nothing else in it."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipeline.engine.errors import UserError
from pipeline.providers import presets
from pipeline.providers.openai_compatible import OpenAICompatible
from pipeline.providers.presets import PRESETS, Preset
from pipeline.providers.protocols import Answer, PageRef
from pipeline.providers.vision_pages import VisionConverter
from pipeline.reading.ocr.rendition import PictureFacts, Rendition
from pipeline.reading.pdf.conversion import open_source
from pipeline.reading.pdf.pages import Options
from pipeline.settings import ProviderProfile
from tests.support.provider_server import ProviderServer
from tests.support.samples import sized_pdf, text_pdf

RECORDED = {
    "json_blocks": json.dumps(
        [
            {"bbox": [100, 100, 500, 140], "category": "Title", "text": "# The mill"},
            {"bbox": [100, 200, 900, 400], "category": "Text", "text": "Water turns a wheel."},
            {"bbox": [100, 500, 900, 600], "category": "Table", "text": "<table><tr><td>a</td><td>b</td></tr></table>"},
        ]
    ),
    "front_matter": "---\nprimary_language: en\nis_rotation_valid: true\nrotation_correction: 0\nis_table: false\n"
    "is_diagram: false\n---\n# The mill\n\nWater turns a wheel.",
    "ref_det": "<|ref|>title<|/ref|><|det|>[[100, 100, 500, 140]]<|/det|>\n# The mill\n\n"
    "<|ref|>text<|/ref|><|det|>[[100, 200, 900, 400]]<|/det|>\nWater turns a wheel.\n",
    "doctags": "<doctag><section_header_level_1><loc_50><loc_50><loc_250><loc_70>The mill</section_header_level_1>"
    "<text><loc_50><loc_100><loc_450><loc_200>Water turns a wheel.</text></doctag>",
    "md_boxes": "![title](100,100,500,140)\n# The mill\n\n![text](100,200,900,400)\nWater turns a wheel.",
    "html_blocks": '<div data-bbox="100 100 500 140" data-label="Section-Header"><h1>The mill</h1></div>'
    '<div data-bbox="100 200 900 400" data-label="Text"><p>Water turns a wheel.</p></div>',
    "markdown": "# The mill\n\nWater turns a wheel.",
}
"""Replies in the documented shapes."""
WITH_BOXES = RECORDED.keys() - {"front_matter", "markdown"}
SAMPLING = {"temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty"}
A4, A0 = "0 0 595.28 841.89", "0 0 2384 3370"
ONE_STEP = [preset for preset in PRESETS if preset.steps == "page"]


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


def drawn(folder: Path, rendition: Rendition, box: str = A4, max_pixels: int = 25_000_000) -> Path:
    with open_source(sized_pdf(folder / "a.pdf", box), Options()) as source:
        return source.render(1, folder, rendition, max_pixels)


def answer_of(server: ProviderServer, folder: Path, **values: Any) -> Answer:
    profile = ProviderProfile(**({"base_url": server.base_url, "model": "m", "timeout_s": 20} | values))
    converter = VisionConverter(OpenAICompatible("x", profile))
    source = text_pdf(folder / "a.pdf", [["The mill", "Water turns a wheel."]])
    with open_source(source, Options()) as pages:
        image = pages.render(1, folder, converter.rendition, 25_000_000)
    with converter.open(image) as reader:
        return reader.convert(PageRef(source, 1, image))


@pytest.mark.parametrize("preset", ONE_STEP, ids=lambda preset: preset.id)
def test_a_request_has_what_the_preset_names_and_nothing_else(
    server: ProviderServer, tmp_path: Path, preset: Preset
) -> None:
    server.script.picture_answer = lambda _: RECORDED[preset.form.kind]
    answer = answer_of(server, tmp_path, preset=preset.id)
    assert answer.text.lstrip("#").startswith(" The mill\n\nWater turns a wheel.")
    blocks = answer.layout["blocks"] if answer.layout else []
    assert [block["type"] for block in blocks][:2] == (
        ["heading", "paragraph"] if preset.form.kind in WITH_BOXES else []
    )
    if answer.layout:
        sides = answer.layout["width"], answer.layout["height"]
        assert (answer.layout["unit"], *sides) == ("pt", 612, 792)
        scale = preset.form.scale or 0
        if scale in {999, 1000}:
            assert blocks[1]["bbox"] == pytest.approx(
                [sides[0] * 0.1, sides[1] * 0.2, sides[0] * 0.9, sides[1] * 0.4], abs=1
            )
    body = server.records[-1].body
    assert len(server.records) == 1
    *system, user = body["messages"]
    assert [message["content"] for message in system] == ([preset.system] if preset.system else [])
    kinds = [part["type"] for part in user["content"]]
    prompt = preset.prompts["page"]
    in_order = ["image_url", "text"] if preset.picture_first else ["text", "image_url"]
    assert kinds == (in_order if prompt else ["image_url"])
    assert [part["text"] for part in user["content"] if part["type"] == "text"] == ([prompt] if prompt else [])
    assert {name: body[name] for name in SAMPLING & body.keys()} == {
        name: value for name, value in {**preset.sampling, **preset.extra}.items() if name in SAMPLING
    }
    assert body["max_tokens"] == preset.max_tokens
    own = {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert body.keys() - own == preset.sampling.keys() | preset.extra.keys()
    assert json.loads(json.dumps(dict(preset.extra))) == {name: body[name] for name in preset.extra}
    shown = next(part["image_url"] for part in user["content"] if part["type"] == "image_url")
    assert shown.get("detail", "") == preset.detail
    with Image.open(io.BytesIO(base64.b64decode(shown["url"].partition(",")[2]))) as picture:
        assert preset.picture.format in {"auto", str(picture.format).lower()}
        if preset.picture.longest:
            assert max(picture.size) == preset.picture.longest
        assert picture.width % preset.picture.multiple == picture.height % preset.picture.multiple == 0


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("lightonai/LightOnOCR-2-1B", "lightonocr"),
        ("LightOnOCR-3-0.8B", "lightonocr-3"),
        ("lightonai/LightOnOCR-3-1B", "lightonocr-3-1b"),
        ("rednote-hilab/dots.ocr", "dots.ocr"),
        ("rednote-hilab/dots.mocr", "dots.ocr"),
        ("olmocr", "olmocr-2"),
        ("allenai/olmOCR-2-7B-1025-FP8", "olmocr-2"),
        ("deepseek-ai/DeepSeek-OCR-2", "deepseek-ocr"),
        ("ibm/granite-docling:258m", "granite-docling"),
        ("nanonets/Nanonets-OCR2-3B", "nanonets-ocr2"),
        ("PaddlePaddle/PaddleOCR-VL-1.5", "paddleocr-vl"),
        ("zai-org/GLM-OCR", "glm-ocr"),
        ("infly/Infinity-Parser2-Pro", "infinity-parser2"),
        ("opendatalab/MinerU2.5-Pro-2605-1.2B", "mineru2.5"),
        ("datalab-to/chandra-ocr-2", "chandra-2"),
        ("datalab-to/chandra", "chandra"),
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3-vl"),
        ("gemini-3-pro", "gemini"),
        ("google/gemini-2.5-flash", "gemini"),
        ("gpt-5-mini", "openai-reasoning"),
        ("o4-mini", "openai-reasoning"),
        ("gpt-4o-mini", "openai"),
        ("llama-4", "general"),
        ("", "general"),
    ],
)
def test_a_models_name_chooses_its_preset(model: str, preset: str) -> None:
    assert presets.chosen(ProviderProfile(), model).id == preset
    assert presets.chosen(ProviderProfile(preset="chandra"), model).id == "chandra"


def test_every_preset_can_be_shown_and_has_a_name_of_its_own() -> None:
    assert len({preset.id for preset in PRESETS}) == len(PRESETS)
    for preset in PRESETS:
        assert preset.id == "general" or preset.licence
        assert preset.id == "general" or preset.source
        assert len(preset.retries) <= 2
        assert preset.most_tokens >= preset.max_tokens or preset.id.startswith("lightonocr")
    with pytest.raises(UserError, match="there is no preset 'nope'; these are: light"):
        presets.named("nope")


def test_a_profile_replaces_prompt_temperature_limit_and_resolution(server: ProviderServer, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Read it to me.\n")
    own = {"temperature": 0.6, "max_tokens": 77, "image_dpi": 72, "prompt_file": prompt}
    answer_of(server, tmp_path, preset="lightonocr", **own)
    body = server.records[-1].body
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.6, 0.9, 77)
    assert server.records[-1].prompt == "Read it to me."
    facts = PictureFacts.read(tmp_path / "page-0001.png")
    assert facts
    assert (facts.width, facts.height, facts.page_width, facts.unit) == (612, 792, 612, "pt")


def test_no_temperature_is_sent_to_models_that_refuse_one(server: ProviderServer) -> None:
    for model, sent in (("gpt-5-mini", None), ("gemini-3-pro", None), ("any", 0.0)):
        service = OpenAICompatible("x", ProviderProfile(base_url=server.base_url, model=model))
        service.complete("Hello")
        assert server.records[-1].body.get("temperature") == sent


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read"), (b" \n", "is empty"), (b"x" * 32_001, "more than 32 kB"), (b"\xff\xfe", "not text")],
)
def test_a_prompt_file_that_cannot_be_used_is_refused_with_the_settings(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "prompt.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        ProviderProfile(prompt_file=path)


@pytest.mark.parametrize(
    ("rendition", "box", "size"),
    [
        (Rendition(72), A4, (596, 842)),
        (Rendition(0, longest=1288), A4, (911, 1288)),
        (Rendition(0, shortest=1280), A4, (1280, 1811)),
        (Rendition(192, shortest=1024), "0 0 300 400", (1024, 1366)),
        (Rendition(200, most_pixels=11_289_600, multiple=28), A4, (1652, 2352)),
        (Rendition(200, most_pixels=1_000_000, multiple=28), A0, (840, 1176)),
        (Rendition(200, exact=(1036, 1036)), A4, (1036, 1036)),
        (Rendition(72, turn=90), A4, (842, 596)),
        (Rendition(72).scaled(0.5), A4, (298, 421)),
    ],
)
def test_a_page_is_drawn_in_the_size_that_a_model_wants(
    tmp_path: Path, rendition: Rendition, box: str, size: tuple[int, int]
) -> None:
    path = drawn(tmp_path, rendition, box)
    facts = PictureFacts.read(path)
    assert facts
    assert (facts.rendition, facts.blank) == (rendition, True)
    with Image.open(path) as picture:
        assert picture.size == (facts.width, facts.height)
        assert all(
            abs(side - wanted) <= (0 if rendition.multiple > 1 else 1)
            for side, wanted in zip(picture.size, size, strict=True)
        )
