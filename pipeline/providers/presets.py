"""How each model made for documents wants its pages, and how it answers: one record for each family of models.

The figures and short commands come from the models' own repositories and cards; `source` names them. The long prompts
of others are not here: a preset asks in our words, and a profile's `prompt_file` replaces them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipeline.engine.errors import UserError
from pipeline.providers.prompts import BLOCKS_PROMPT, FRONT_MATTER_PROMPT, HTML_PROMPT, PAGE_PROMPT, TAGGED_PROMPT
from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.replies.form import Form
from pipeline.settings import ProviderProfile

Fields = Mapping[str, Any]
"""Fields of a request."""
Task = Literal["page", "layout", "text", "table", "formula"]

GENERAL = "general"


_PNG_200 = Rendition(200, format="png")
_CROP = Rendition(0, format="png")
_MARKDOWN = Form("markdown", None)
_GREEDY = {"temperature": 0.0}


@dataclass(frozen=True)
class Preset:
    """How to ask a family of models for the text of a page.

    A page may take `steps`: one call for the `page`; crops by our own layout model (`own_layout`); or the model's
    `layout`, then crops by it.
    """

    id: str
    match: tuple[str, ...]
    """Regular expressions: a match in a model's name, in lower case, chooses the preset."""
    version: int = 1
    """Increase it when a change makes other requests: cached pages then do not count."""
    steps: Literal["page", "own_layout", "layout"] = "page"
    system: str = ""
    prompts: Mapping[Task, str] = field(default_factory=lambda: {"page": PAGE_PROMPT})
    """By task. An empty prompt: the picture is sent alone."""
    picture_first: bool = True
    detail: str = ""
    """OpenAI's `image_url.detail`; empty: none is sent."""
    picture: Rendition = _PNG_200
    crop: Rendition = _CROP
    """The pictures of the second step; their sides are counted in pixels of the page's picture."""
    sampling: Fields = field(default_factory=dict)
    """Sampling parameters; no others are sent."""
    retries: tuple[Fields, ...] = ({"temperature": 0.3}, {"temperature": 0.7})
    """The sampling parameters that change in the attempts after a reply that repeats itself or lacks its structure."""
    max_tokens: int = 8192
    most_tokens: int = 16384
    """The limit for an attempt after an answer that was cut off at `max_tokens`."""
    extra: Fields = field(default_factory=dict)
    """Further fields of the request, which only some servers know."""
    by_task: Mapping[Task, Fields] = field(default_factory=dict)
    """Sampling parameters of a task that differ from `sampling`."""
    form: Form = _MARKDOWN
    forms: Mapping[Task, Form] = field(default_factory=dict)
    """The shapes of the replies to a task that differ from `form`."""
    licence: str = ""
    scores: Mapping[str, str] = field(default_factory=dict)
    """Published scores by benchmark, by the makers' own account unless they say otherwise."""
    hint: str = ""
    """What the server needs."""
    source: str = ""

    @property
    def has_boxes(self) -> bool:
        """Whether the blocks of its pages have boxes."""
        return self.steps != "page" or self.form.kind not in {"markdown", "front_matter"}

    def form_of(self, task: Task) -> Form:
        """Return the shape of the replies to a task."""
        return self.forms.get(task, self.form)


_CROP_FORMS: Mapping[Task, Form] = {"table": Form("otsl", None)}

_LIGHTON_3 = Preset(
    "lightonocr-3",
    (r"lighton-?ocr-3",),
    prompts={"page": ""},
    picture=Rendition(0, longest=2048, format="png"),
    sampling={"temperature": 0.2, "top_p": 1.0},
    retries=({"temperature": 0.4}, {"temperature": 0.7}),
    max_tokens=12288,
    extra={"chat_template_kwargs": {"enable_thinking": False}},
    licence="Apache-2.0",
    scores={"olmOCR-bench": "86.1 (4B), 85.4 (0.8B), 84.5 (1B)"},
    hint="vLLM 0.30 or newer: with 0.27.1 the model repeats itself.",
    source="lightonai/LightOnOCR: lightonocr/client.py, models.py, grounding.py, benchmarks",
)

PRESETS: tuple[Preset, ...] = (
    replace(
        _LIGHTON_3,
        id="lightonocr-3-1b",
        match=(r"lighton-?ocr-3-1b",),
        picture=Rendition(0, longest=1540, format="png"),
    ),
    _LIGHTON_3,
    replace(
        _LIGHTON_3,
        id="lightonocr-3-boxes",
        match=(),
        prompts={"page": "grounding"},
        form=Form("md_boxes", 1000),
        hint="LightOnOCR-3 with blocks and boxes, for PRESET=lightonocr-3-boxes. " + _LIGHTON_3.hint,
    ),
    Preset(
        "lightonocr",
        (r"lighton-?ocr",),
        prompts={"page": ""},
        picture=Rendition(0, longest=1540, format="png"),
        sampling={"temperature": 0.2, "top_p": 0.9},
        retries=({"temperature": 0.4}, {"temperature": 0.7}),
        max_tokens=6500,
        licence="Apache-2.0",
        hint="vLLM with the picture alone in the request; the model never decodes greedily.",
        source="lightonai/LightOnOCR: lightonocr/client.py, models.py",
    ),
    Preset(
        "dots.ocr",
        (r"dots[._-]?m?ocr",),
        prompts={"page": "<|img|><|imgpad|><|endofimg|>" + BLOCKS_PROMPT},
        picture=Rendition(200, least_pixels=3136, most_pixels=11_289_600, multiple=28, format="png"),
        sampling={"temperature": 0.1, "top_p": 1.0},
        max_tokens=16384,
        most_tokens=24000,
        form=Form("json_blocks", None),
        licence="MIT for the code; the weights have an agreement of their own (dots.ocr LICENSE AGREEMENT)",
        scores={"olmOCR-bench": "83.9 (dots.mocr), 79.1 (dots.ocr)", "OmniDocBench 1.5": "88.41 (dots.ocr)"},
        hint="vllm serve --chat-template-content-format string --trust-remote-code; otherwise replies may be garbled.",
        source="rednote-hilab/dots.ocr: dots_ocr/parser.py, model/inference.py, utils",
    ),
    Preset(
        "olmocr-2",
        (r"olm-?ocr",),
        prompts={"page": FRONT_MATTER_PROMPT},
        picture_first=False,
        picture=Rendition(0, longest=1288, format="png"),
        sampling={"temperature": 0.1},
        retries=({"temperature": 0.2}, {"temperature": 0.5}),
        max_tokens=8000,
        most_tokens=12000,
        form=Form("front_matter", None),
        licence="Apache-2.0",
        scores={"olmOCR-bench": "82.4"},
        hint="vllm serve --max-model-len 16384",
        source="allenai/olmocr: olmocr/pipeline.py, prompts/prompts.py",
    ),
    Preset(
        "deepseek-ocr",
        (r"deepseek-?ocr", r"unlimited-?ocr"),
        prompts={"page": "<|grounding|>Convert the document to markdown."},
        picture=Rendition(144, format="png"),
        sampling=_GREEDY,
        retries=({"temperature": 0.2}, {"temperature": 0.5}),
        max_tokens=6500,
        most_tokens=6500,
        extra={
            "skip_special_tokens": False,
            "vllm_xargs": {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [128821, 128822]},
        },
        form=Form("ref_det", 999),
        licence="MIT (DeepSeek-OCR), Apache-2.0 (DeepSeek-OCR-2)",
        scores={"OmniDocBench 1.5": "91.09 (2), 87.36 (1)", "olmOCR-bench": "75.7 (1)"},
        hint="vllm serve --logits_processors vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor "
        "--no-enable-prefix-caching --mm-processor-cache-gb 0",
        source="deepseek-ai/DeepSeek-OCR-2: README.md, run_dpsk_ocr_pdf.py; vllm-project/recipes",
    ),
    Preset(
        "granite-docling",
        (r"granite-?docling", r"smol-?docling"),
        prompts={"page": "Convert this page to docling."},
        picture=Rendition(144, format="png"),
        sampling=_GREEDY,
        max_tokens=8192,
        most_tokens=8192,
        extra={"stop": ["</doctag>", "<|end_of_text|>"], "skip_special_tokens": False},
        form=Form("doctags", 500),
        licence="Apache-2.0",
        hint="vllm serve --revision untied; Ollama: ibm/granite-docling:258m, with OLLAMA_CONTEXT_LENGTH=16384.",
        source="docling: docling/datamodel/vlm_model_specs.py; docling-core: types/doc/tokens.py",
    ),
    Preset(
        "nanonets-ocr2",
        (r"nanonets-?ocr",),
        system="You are a helpful assistant.",
        prompts={"page": TAGGED_PROMPT},
        picture=Rendition(0, shortest=1280, format="png"),
        sampling=_GREEDY,
        max_tokens=15000,
        most_tokens=15000,
        licence="the card names none; its base Qwen2.5-VL-3B is under the Qwen Research Licence",
        scores={"olmOCR-bench": "69.5"},
        hint="vllm serve --max-model-len 32768",
        source="allenai/olmocr: bench/runners/run_nanonetsocr_2.py; docling: vlm_model_specs.py",
    ),
    Preset(
        "paddleocr-vl",
        (r"paddle-?ocr-?vl",),
        steps="own_layout",
        prompts={"text": "OCR:", "table": "Table Recognition:", "formula": "Formula Recognition:"},
        crop=Rendition(0, least_pixels=28 * 28, format="jpeg"),
        sampling=_GREEDY,
        retries=({"temperature": 0.2}, {"temperature": 0.5}),
        max_tokens=4096,
        most_tokens=8192,
        extra={
            "skip_special_tokens": True,
            "mm_processor_kwargs": {"min_pixels": 112_896, "max_pixels": 1_003_520},
        },
        forms=_CROP_FORMS,
        licence="Apache-2.0",
        scores={"OmniDocBench 1.6": "96.33 (1.6)", "olmOCR-bench": "80.0 (1.0)"},
        hint="vllm serve --trust-remote-code --no-enable-prefix-caching --mm-processor-cache-gb 0. Penstock finds the "
        "page's parts with its own layout model; the scores are with PP-DocLayout.",
        source="PaddlePaddle/PaddleX: pipelines/paddleocr_vl/pipeline.py; vllm-project/recipes",
    ),
    Preset(
        "glm-ocr",
        (r"glm-?ocr",),
        steps="own_layout",
        prompts={"text": "Text Recognition:", "table": "Table Recognition:", "formula": "Formula Recognition:"},
        crop=Rendition(0, least_pixels=12_544, multiple=14, format="jpeg"),
        sampling={"temperature": 0.0, "top_p": 0.00001},
        retries=({"temperature": 0.2, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        max_tokens=8192,
        most_tokens=8192,
        extra={"top_k": 1, "repetition_penalty": 1.1},
        licence="MIT (the code: Apache-2.0)",
        scores={"OmniDocBench 1.5": "94.62"},
        hint="vLLM or SGLang; Ollama's OpenAI endpoint is limited. Penstock finds the page's parts with its "
        "own layout model; the score is with PP-DocLayoutV3.",
        source="zai-org/GLM-OCR: glmocr/config.yaml, dataloader/page_loader.py",
    ),
    Preset(
        "infinity-parser2",
        (r"infinity-?parser-?2",),
        prompts={"page": BLOCKS_PROMPT},
        picture=Rendition(200, least_pixels=2048, most_pixels=16_777_216, format="png"),
        sampling={"temperature": 0.0, "top_p": 1.0},
        max_tokens=32768,
        most_tokens=32768,
        extra={"chat_template_kwargs": {"enable_thinking": False}},
        form=Form("json_blocks", 1000),
        licence="see the model's card",
        scores={"olmOCR-bench": "87.6 (Pro)", "ParseBench": "74.3 (Pro)"},
        hint="vllm serve --max-model-len 65536 --reasoning-parser qwen3",
        source="infly-ai/INF-MLLM: Infinity-Parser2/infinity_parser2/backends/vllm_server.py, prompts.py",
    ),
    Preset(
        "mineru2.5",
        (r"mineru-?2",),
        steps="layout",
        system="You are a helpful assistant.",
        prompts={
            "layout": "\nLayout Detection:",
            "text": "\nText Recognition:",
            "table": "\nTable Recognition:",
            "formula": "\nFormula Recognition:",
        },
        crop=Rendition(0, shortest=28, format="png"),
        sampling={
            "temperature": 0.0,
            "top_p": 0.01,
            "presence_penalty": 1.0,
            "frequency_penalty": 0.05,
        },
        retries=({"temperature": 0.2, "top_p": 0.8}, {"temperature": 0.5, "top_p": 0.8}),
        by_task={
            "layout": {"presence_penalty": 0.0, "frequency_penalty": 0.0},
            "table": {"frequency_penalty": 0.005},
        },
        max_tokens=4096,
        most_tokens=8192,
        extra={
            "top_k": 1,
            "repetition_penalty": 1.0,
            "skip_special_tokens": False,
            "vllm_xargs": {"no_repeat_ngram_size": 100},
        },
        forms={**_CROP_FORMS, "layout": Form("layout_tokens", 1000)},
        licence="Apache-2.0 for mineru-vl-utils; MinerU's own licence adds limits (100 million users, USD 20 million "
        "a month, attribution for online services)",
        scores={"OmniDocBench 1.6": "95.69 (Pro)", "olmOCR-bench": "75.2"},
        hint="vllm serve --logits-processors mineru_vl_utils:MinerULogitsProcessor",
        source="opendatalab/mineru-vl-utils: mineru_vl_utils/mineru_client.py, vlm_client/http_client.py",
    ),
    Preset(
        "chandra-2",
        (r"chandra-?ocr-?2", r"chandra-?2"),
        prompts={"page": HTML_PROMPT},
        picture=Rendition(192, shortest=1024, most_pixels=3072 * 2048, format="png"),
        sampling={"temperature": 0.0, "top_p": 0.1},
        retries=({"temperature": 0.3, "top_p": 0.95}, {"temperature": 0.6, "top_p": 0.95}),
        max_tokens=12384,
        form=Form("html_blocks", 1000),
        licence="modified OpenRAIL-M: free below USD 2 million, not to compete with its makers' API",
        scores={"olmOCR-bench": "85.9"},
        hint="vllm serve --max-model-len 18000; a page may take minutes: raise TIMEOUT_S.",
        source="datalab-to/chandra: chandra/settings.py, model/vllm.py; docling: vlm_prompts.py",
    ),
    Preset(
        "chandra",
        (r"chandra",),
        prompts={"page": HTML_PROMPT.replace("1000", "1024")},
        picture=Rendition(192, shortest=1024, most_pixels=3072 * 2048, format="png"),
        sampling={"temperature": 0.0, "top_p": 0.1},
        retries=({"temperature": 0.3, "top_p": 0.95}, {"temperature": 0.6, "top_p": 0.95}),
        max_tokens=12384,
        form=Form("html_blocks", 1024),
        licence="modified OpenRAIL-M: free below USD 2 million, not to compete with its makers' API",
        scores={"olmOCR-bench": "83.1"},
        hint="vllm serve --max-model-len 18000; a page may take minutes: raise TIMEOUT_S.",
        source="datalab-to/chandra: chandra/settings.py, model/vllm.py",
    ),
    Preset(
        "qwen3-vl",
        (r"qwen-?3(?:\.\d)?-?vl",),
        prompts={"page": "qwenvl html"},
        picture=Rendition(200, most_pixels=4_194_304, multiple=32, format="png"),
        sampling={"temperature": 0.7, "top_p": 0.8, "presence_penalty": 1.5},
        retries=({"temperature": 0.9}, {"temperature": 1.0}),
        max_tokens=12288,
        extra={"top_k": 20},
        form=Form("html_blocks", 1000),
        licence="Apache-2.0",
        scores={"OmniDocBench 1.5": "89.15 (235B)", "olmOCR-bench": "64.6 (8B)"},
        hint="Ollama: set OLLAMA_CONTEXT_LENGTH=32768; the picture and the answer share the context.",
        source="QwenLM/Qwen3-VL: README.md, cookbooks/document_parsing.ipynb",
    ),
    Preset(
        "gemini",
        (r"gemini",),
        picture=Rendition(150),
        retries=(),
        max_tokens=16384,
        most_tokens=32768,
        licence="a service",
        scores={"OmniDocBench 1.5": "90.33 (3 Pro), 88.03 (2.5 Pro)"},
        hint="No temperature is sent: Gemini 3 may repeat itself below 1.0. Thoughts count as output: leave room in "
        "MAX_TOKENS.",
        source="ai.google.dev/gemini-api/docs/gemini-3",
    ),
    Preset(
        "openai-reasoning",
        (r"^gpt-[5-9]", r"^o[1-9]\b"),
        picture_first=False,
        detail="high",
        picture=Rendition(150),
        retries=(),
        max_tokens=16384,
        most_tokens=32768,
        licence="a service",
        hint="No temperature is sent: these models refuse any. Thoughts count as output: leave room in MAX_TOKENS.",
        source="openai: types/chat/chat_completion_content_part_image_param.py",
    ),
    Preset(
        "openai",
        (r"^gpt-[34]", r"^chatgpt-"),
        picture_first=False,
        detail="high",
        picture=Rendition(150),
        sampling=_GREEDY,
        licence="a service",
        source="openai: types/chat/chat_completion_content_part_image_param.py",
    ),
    Preset(
        GENERAL,
        (),
        picture_first=False,
        picture=Rendition(150),
        sampling=_GREEDY,
        hint="Any other model. Ollama gives a model 4,096 tokens for picture and answer together, unless "
        "OLLAMA_CONTEXT_LENGTH says more: 16384 suffices for most pages.",
    ),
)
"""All presets. The first one that matches a model's name is chosen."""

_BY_ID = {preset.id: preset for preset in PRESETS}


def named(name: str) -> Preset:
    """Return the preset with this id. Raises `UserError`."""
    if name not in _BY_ID:
        raise UserError(f"there is no preset '{name}'; these are: {', '.join(_BY_ID)}", code="unknown_preset")
    return _BY_ID[name]


def chosen(profile: ProviderProfile, model: str) -> Preset:
    """Return the preset that a profile names, or else the one for this model, or else the general one. Raises
    `UserError` for an unknown name."""
    if profile.preset:
        return named(profile.preset)
    name = model.casefold().rpartition("/")[2]
    known = (preset for preset in PRESETS if any(re.search(pattern, name) for pattern in preset.match))
    return next(known, _BY_ID[GENERAL])


def temperature(profile: ProviderProfile, model: str) -> float | None:
    """Return the temperature of a call: the profile's, else the preset's; None: send none."""
    if profile.temperature is not None:
        return profile.temperature
    own: float | None = chosen(profile, model).sampling.get("temperature")
    return own
