"""The executor of a node's jobs, called like the agent calls it."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.nodes.protocol import MODEL_NOT_AVAILABLE, Attachment, Capability
from pipeline.providers import local, registry
from pipeline.providers.lexical import LexicalEmbeddings
from pipeline.providers.local import LocalConverter
from pipeline.providers.node_executor import ProviderExecutor
from pipeline.providers.prompts import PAGE_PROMPT
from pipeline.providers.protocols import Answer, PageRef
from pipeline.reading.layout.page import Line
from pipeline.reading.ocr import recognition
from pipeline.settings import DocumentSettings, ProviderProfile, Settings
from tests.support.pages_here import PagesHere
from tests.support.provider_server import Fault, ProviderServer, default_markdown, default_vector
from tests.support.samples import picture_of

PNG = b"\x89PNG\r\n\x1a\n picture"
PAGE, TEXT, VISION, EMBEDDINGS = Capability.PAGE, Capability.TEXT, Capability.VISION, Capability.EMBEDDINGS


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture
def service(server: ProviderServer) -> ProviderExecutor:
    return of_service(server)


def of_service(server: ProviderServer, **options: Any) -> ProviderExecutor:
    profile = ProviderProfile(base_url=server.base_url, model="m-1", timeout_s=20)
    return ProviderExecutor(Settings(providers={"desk": profile}), "desk", **options)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace text recognition: its line depends on every pixel. Return the numbers of threads it was called with."""
    threads_of: list[int] = []

    def read(image: Image.Image, threads: int) -> recognition.Reading:
        threads_of.append(threads)
        words = hashlib.sha256(image.tobytes()).hexdigest()[:12]
        return recognition.Reading(
            [Line(f"seen {words}", image.width * 0.1, 40.0, image.width * 0.9, 60.0, 15.0)], 0.97
        )

    monkeypatch.setattr(recognition, "read", read)
    monkeypatch.setattr(local, "Pages", PagesHere)
    return threads_of


def done(
    executor: ProviderExecutor, capability: Capability, *pictures: bytes, model: str = "", **body: Any
) -> dict[str, Any]:
    files = [(Attachment(media_type="image/png", size=len(data)), data) for data in pictures]
    result, attachments = executor.run(capability, model, body, files, lambda _: None)
    assert attachments == []
    return result


def error_of(executor: ProviderExecutor, capability: Capability, *pictures: bytes, **more: Any) -> UnitError:
    with pytest.raises(UnitError) as caught:
        done(executor, capability, *pictures, **more)
    return caught.value


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_page_picture_converts_on_a_node_as_it_does_locally(seen: list[int], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"scan.{suffix}"
    picture_of(["words"], (2600, 1800)).save(path)
    with LocalConverter(Settings()).open(path) as reader:
        expected = reader.convert(PageRef(path, 1))
    result = done(ProviderExecutor(Settings(), "local"), PAGE, path.read_bytes(), number=1, pictures=True)
    assert (result["text"], result["layout"]) == (expected.text, expected.layout)
    assert (result["model"], result["truncated"]) == ("local", False)
    assert "seen " in result["text"]


def test_the_layout_has_the_number_of_the_page(seen: list[int], tmp_path: Path) -> None:
    path = tmp_path / "scan.png"
    picture_of(["words"]).save(path)
    result = done(ProviderExecutor(Settings(), "local"), PAGE, path.read_bytes(), number=7)
    assert {block["page"] for block in result["layout"]["blocks"]} == {7}


def test_one_engine_gets_all_cores_unless_the_settings_say_how_many_share_them(seen: list[int], tmp_path: Path) -> None:
    path = tmp_path / "scan.png"
    picture_of(["words"]).save(path)
    for settings in (Settings(), Settings(documents=DocumentSettings(converter_count=256))):
        done(ProviderExecutor(settings, "local"), PAGE, path.read_bytes())
    assert seen == [recognition.threads_for(1), 1]


def test_pictures_that_were_cut_out_come_with_the_names_that_the_markdown_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Converter:
        def open(self, source: Path, survey: str = "") -> "Converter":
            return self

        def __enter__(self) -> "Converter":
            return self

        def __exit__(self, *_: object) -> None: ...

        def convert(self, page: PageRef) -> Answer:
            text, layout = "plain", None
            if page.pictures is not None:
                page.pictures.mkdir()
                for number in (2, 1):
                    (page.pictures / f"page-0001-{number}.png").write_bytes(b"x" * number)
                shown = f"{page.pictures.name}/page-0001-1.png"
                text, layout = f"![]({shown}) (pictures/)", {"blocks": [{"type": "picture", "link": shown}]}
            return Answer(text, "local", layout=layout)

    executor = ProviderExecutor(Settings(), "local")
    monkeypatch.setattr(registry, "page_converter", lambda *_: Converter())
    files: Sequence[tuple[Attachment, bytes]] = [(Attachment(size=len(PNG)), PNG)]
    result, attachments = executor.run(PAGE, "", {"number": 1, "pictures": True}, files, lambda _: None)
    assert result["text"] == "![](page-0001-1.png) (pictures/)"
    assert result["layout"] == {"blocks": [{"type": "picture", "link": "page-0001-1.png"}]}
    assert [(about.name, about.media_type, about.size, data) for about, data in attachments] == [
        ("page-0001-1.png", "image/png", 1, b"x"),
        ("page-0001-2.png", "image/png", 2, b"xx"),
    ]
    _, attachments = executor.run(PAGE, "", {"number": 1, "pictures": False}, files, lambda _: None)
    assert attachments == []


def test_vectors_of_words_need_no_service() -> None:
    executor = ProviderExecutor(Settings(), "local")
    assert [(offer.capability, offer.models) for offer in executor.offers] == [
        (PAGE, ("local",)),
        (EMBEDDINGS, ("lexical-1024",)),
    ]
    result = done(executor, EMBEDDINGS, texts=["one", "two"], model="lexical-1024")
    expected = LexicalEmbeddings().embed(["one", "two"])
    assert (result["vectors"], result["model"]) == (expected.vectors, expected.model)


def test_a_service_answers_prompts_pictures_and_texts(server: ProviderServer, service: ProviderExecutor) -> None:
    assert {offer.capability for offer in service.offers} == set(Capability)
    assert {offer.models for offer in service.offers} == {("m-1",)}
    schema = {"type": "object"}
    reply = done(service, TEXT, prompt="p", system="s", json_schema=schema, model="m-1", odd_field=1)
    assert set(reply) == {"text", "model", "truncated", "usage", "latency_ms"}
    assert set(reply["usage"]) == {"input_tokens", "output_tokens"}
    body = server.records[-1].body
    assert [message["content"] for message in body["messages"]] == ["s", "p"]
    assert body["response_format"]["json_schema"]["schema"] == schema
    done(service, VISION, PNG, PNG, prompt="look")
    assert len(server.records[-1].body["messages"][0]["content"]) == 3
    assert done(service, EMBEDDINGS, texts=["a", "b"])["vectors"] == [default_vector("a"), default_vector("b")]
    page = done(service, PAGE, PNG, number=1)
    assert (page["text"], page["layout"]) == (default_markdown(PNG).strip(), None)
    assert server.records[-1].prompt == PAGE_PROMPT


def test_a_truncated_page_is_returned_because_it_was_paid_for(
    server: ProviderServer, service: ProviderExecutor
) -> None:
    server.push(Fault(kind="truncated", text="# Half"))
    page = done(service, PAGE, PNG, number=1)
    assert (page["text"], page["truncated"]) == ("# Half", True)


def test_an_executor_uses_only_the_models_that_it_offers(server: ProviderServer) -> None:
    executor = of_service(server, models=["big", "small"], capabilities=[TEXT])
    assert [(offer.capability, offer.models) for offer in executor.offers] == [(TEXT, ("big", "small"))]
    for model, used in (("", "big"), ("small", "small")):
        done(executor, TEXT, prompt="p", model=model)
        assert server.records[-1].model == used
    for capability, model in ((TEXT, "m-1"), (TEXT, "*"), (PAGE, "big")):
        error = error_of(executor, capability, model=model, prompt="p")
        assert (error.code, error.kind) == (MODEL_NOT_AVAILABLE, ErrorKind.PERMANENT)
    assert len(server.records) == 2


def test_a_star_offers_any_model(server: ProviderServer) -> None:
    executor = of_service(server, models=["*"])
    for model, used in (("any-other", "any-other"), ("", "m-1")):
        done(executor, TEXT, prompt="p", model=model)
        assert server.records[-1].model == used


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_failure_of_this_node_alone_leaves_the_job_to_another_node(
    server: ProviderServer, service: ProviderExecutor, status: int
) -> None:
    server.push(Fault(status=status))
    error = error_of(service, TEXT, prompt="p")
    assert (error.code, error.kind) == (MODEL_NOT_AVAILABLE, ErrorKind.PERMANENT)


def test_errors_of_the_service_keep_their_kind_and_wait(server: ProviderServer, service: ProviderExecutor) -> None:
    server.push(Fault(status=429, headers={"Retry-After": "7"}), Fault(status=500))
    error = error_of(service, TEXT, prompt="p")
    assert (error.kind, error.code, error.retry_after_s) == (ErrorKind.RATE_LIMITED, "rate_limited", 7)
    assert error_of(service, TEXT, prompt="p").kind is ErrorKind.TRANSIENT


@pytest.mark.parametrize(
    ("capability", "pictures", "body", "code"),
    [
        (TEXT, (), {}, "bad_request"),
        (TEXT, (), {"prompt": 5}, "bad_request"),
        (EMBEDDINGS, (), {"texts": "one"}, "bad_request"),
        (EMBEDDINGS, (), {"texts": [" "]}, "empty_input"),
        (VISION, (), {"prompt": "p"}, "bad_request"),
        (PAGE, (PNG, PNG), {"number": 1}, "bad_request"),
        (PAGE, (PNG,), {"number": 0}, "bad_request"),
        (PAGE, (b"%PDF-1.4 no picture",), {"number": 1}, "bad_image"),
    ],
)
def test_an_invalid_job_is_a_permanent_error_that_quotes_nothing_of_it(
    server: ProviderServer,
    service: ProviderExecutor,
    capability: Capability,
    pictures: tuple[bytes, ...],
    body: dict[str, Any],
    code: str,
) -> None:
    error = error_of(service, capability, *pictures, **body)
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, code)
    assert not server.records


def test_a_damaged_picture_is_a_permanent_error_without_a_path(tmp_path: Path) -> None:
    error = error_of(ProviderExecutor(Settings(), "local"), PAGE, PNG, number=1)
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, "corrupt")
    assert "/" not in str(error)


def test_a_node_does_not_pass_its_jobs_on_to_nodes() -> None:
    profile = ProviderProfile(model="m").model_copy(update={"kind": "nodes"})
    with pytest.raises(UserError, match="would ask itself") as caught:
        ProviderExecutor(Settings().model_copy(update={"providers": {"desk": profile}}), "desk")
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    ("provider", "options", "code"),
    [
        ("nobody", {}, "unknown_provider"),
        ("bare", {}, "no_model"),
        ("local", {"models": ["gpt"]}, "unknown_model"),
        ("local", {"capabilities": [TEXT]}, "usage"),
    ],
)
def test_an_impossible_offer_is_refused_at_the_start(provider: str, options: dict[str, Any], code: str) -> None:
    settings = Settings(providers={"bare": ProviderProfile()})
    with pytest.raises(UserError) as caught:
        ProviderExecutor(settings, provider, **options)
    assert caught.value.code == code
