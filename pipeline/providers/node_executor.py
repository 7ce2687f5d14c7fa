"""Execute a node's jobs with this machine's own conversion, or with a service that it can reach."""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.nodes.client.executor import Parts
from pipeline.nodes.protocol import MAX_ATTACHMENTS, MODEL_NOT_AVAILABLE, Attachment, Capability, Offer
from pipeline.providers import registry
from pipeline.providers.drawing import Drawing
from pipeline.providers.protocols import Answer, PageRef, RejectedAnswer, ServiceConverter, Usage
from pipeline.reading.files.filetype import detect
from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.sandbox.limits import page_limits
from pipeline.settings import LOCAL, Settings

ANY_MODEL = "*"
_PICTURES = "pictures"
_UNLIMITED = 10_000
_SUFFIXES = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
_OF_THIS_NODE = {"auth", "forbidden", "not_found", "redirect", "no_model", "unknown_model", "ocr_unavailable"}
"""Errors of this machine or its settings: another node may succeed."""

Body = TypeVar("Body", bound="_Body")


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _PromptBody(_Body):
    prompt: str
    system: str | None = None
    json_schema: dict[str, Any] | None = None


class _TextsBody(_Body):
    texts: list[str]


class _PageBody(_Body):
    number: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    pictures: bool | None = None


class ProviderExecutor:
    """An `Executor` over the providers of these settings. Creates each provider on its first job."""

    def __init__(
        self,
        settings: Settings,
        provider: str,
        *,
        models: Sequence[str] = (),
        capabilities: Collection[Capability] = (),
    ) -> None:
        """`models`: the models to offer, `*` for any; by default the provider's own. `capabilities`: offer only these.

        Raises `UserError`."""
        self._settings = _with_all_cores(settings) if provider == LOCAL else settings
        self._provider = provider
        # Each child that recognises text has its own engine, and uses all of its cores.
        at_once = self._settings.documents.converter_count if provider == LOCAL else _UNLIMITED
        self._reading = threading.BoundedSemaphore(at_once)
        self._default = next((model for model in models if model != ANY_MODEL), "")
        offers = _local_offers(settings, models) if provider == LOCAL else _offers(settings, provider, models)
        self.offers = tuple(offer for offer in offers if not capabilities or offer.capability in capabilities)
        if not self.offers:
            able = ", ".join(offer.capability for offer in offers)
            raise UserError(f"provider '{provider}' supports only {able or 'nothing'} here", code="usage")
        self._models = {offer.capability: offer.models for offer in self.offers}

    def run(
        self,
        capability: Capability,
        model: str,
        body: dict[str, Any],
        attachments: Sequence[tuple[Attachment, bytes]],
        partial: Callable[[str], None],  # noqa: ARG002  # providers answer at once
    ) -> tuple[dict[str, Any], Parts]:
        """Execute one job, and return its result with its attachments, as docs/reference/node-protocol.md specifies.
        Never calls `partial`.

        Raises `UnitError`: `MODEL_NOT_AVAILABLE` for faults of this node, where another may succeed.
        """
        known = self._models.get(capability, ())
        if model not in {"", *known} and ANY_MODEL not in known:
            raise UnitError(
                f"this node does not offer the model '{model}'", kind=ErrorKind.PERMANENT, code=MODEL_NOT_AVAILABLE
            )
        if self._provider == LOCAL:
            model = ""
        try:
            return self._execute(capability, model or self._default, body, attachments)
        except UserError as error:
            raise UnitError(str(error), kind=ErrorKind.PERMANENT, code=_code(error.code)) from error
        except UnitError as error:
            if error.code in _OF_THIS_NODE or error.kind is ErrorKind.UNAVAILABLE:
                error.code, error.kind = MODEL_NOT_AVAILABLE, ErrorKind.PERMANENT
            raise

    def _execute(
        self, capability: Capability, model: str, body: dict[str, Any], attachments: Sequence[tuple[Attachment, bytes]]
    ) -> tuple[dict[str, Any], Parts]:
        match capability:
            case Capability.PAGE:
                return self._page(model, _checked(body, _PageBody), attachments)
            case Capability.EMBEDDINGS:
                embeddings = registry.embeddings(self._settings, self._provider, model)
                result = embeddings.embed(_checked(body, _TextsBody).texts)
                return {
                    "vectors": result.vectors,
                    "model": result.model,
                    "usage": _tokens(result.usage),
                    "latency_ms": result.latency_ms,
                }, []
            case Capability.VISION:
                return self._vision(model, _checked(body, _PromptBody), attachments), []
            case Capability.TEXT:
                request = _checked(body, _PromptBody)
                text = registry.text(self._settings, self._provider, model)
                return _as_result(
                    text.complete(request.prompt, system=request.system or "", json_schema=request.json_schema)
                ), []

    def _vision(
        self, model: str, request: _PromptBody, attachments: Sequence[tuple[Attachment, bytes]]
    ) -> dict[str, Any]:
        media_types = {about.media_type for about, _ in attachments}
        if len(media_types) != 1:
            raise _bad("pictures of one media type are needed")
        vision = registry.vision(self._settings, self._provider, model)
        pictures = [data for _, data in attachments]
        answer = vision.describe_all(
            pictures, media_types.pop(), request.prompt, system=request.system or "", json_schema=request.json_schema
        )
        return _as_result(answer)

    def _page(
        self, model: str, request: _PageBody, attachments: Sequence[tuple[Attachment, bytes]]
    ) -> tuple[dict[str, Any], Parts]:
        """Convert the picture from a file, like a document of this machine."""
        if len(attachments) != 1:
            raise _bad("one picture of a page is needed")
        picture = attachments[0][1]
        suffix = _SUFFIXES.get(detect(picture) or "")
        if suffix is None:
            raise _bad("the picture of a page is PNG, JPEG or WebP", code="bad_image")
        converter = registry.page_converter(self._settings, self._provider, model)
        with TemporaryDirectory(prefix="penstock-node-") as folder:
            path, cut_out = Path(folder) / f"page{suffix}", Path(folder) / _PICTURES
            path.write_bytes(picture)
            page = PageRef(path, request.number, path, cut_out if request.pictures else None)
            rendition = cast("ServiceConverter", converter).rendition if self._provider != LOCAL else Rendition()
            if not rendition.is_plain:
                # The requester drew the page for any model; this one may want it otherwise.
                limits = page_limits(self._settings.documents.page_timeout_s, self._settings.documents.reader_memory_mb)
                drawing = Drawing(path, 1, Path(folder) / "drawn", limits, self._settings.documents.max_pixels)
                page = replace(page, image=drawing.draw(rendition), drawing=drawing)
            try:
                with self._reading, converter.open(path) as reader:
                    answer = reader.convert(page)
            except RejectedAnswer as error:
                # The answer was paid for: the requester decides.
                answer = replace(error.answer, truncated=True)
            return _with_pictures({**_as_result(answer), "layout": answer.layout}, cut_out)


def _with_all_cores(settings: Settings) -> Settings:
    """Give local conversion all cores unless configured: a node reads with one engine, however many slots it has."""
    if "converter_count" in settings.documents.model_fields_set:
        return settings
    return settings.model_copy(update={"documents": settings.documents.model_copy(update={"converter_count": 1})})


def _local_offers(settings: Settings, models: Sequence[str]) -> list[Offer]:
    names = {
        Capability.PAGE: registry.model_name(settings, LOCAL),
        Capability.EMBEDDINGS: registry.embeddings(settings, LOCAL).model,
    }
    if unknown := set(models) - {ANY_MODEL, *names.values()}:
        raise UserError(f"provider '{LOCAL}' has no model '{min(unknown)}': leave --model out", code="unknown_model")
    wanted = {model for model in models if model != ANY_MODEL}
    return [Offer(capability=able, models=(name,)) for able, name in names.items() if not wanted or name in wanted]


def _offers(settings: Settings, provider: str, models: Sequence[str]) -> list[Offer]:
    profile = settings.providers.get(provider)
    if profile is not None and str(profile.kind) == "nodes":
        message = f"provider '{provider}' is itself a gateway's nodes: a node that asked them would ask itself"
        raise UserError(message, code="unsupported")
    for model in models or ("",):
        if model != ANY_MODEL:
            registry.check(settings, provider, model)
    names = tuple(dict.fromkeys(models)) or (registry.model_name(settings, provider),)
    return [Offer(capability=capability, models=names) for capability in Capability]


def _checked(body: dict[str, Any], kind: type[Body]) -> Body:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:3])
        raise _bad(f"the body is invalid: {where}: {first['msg'][:200]}") from None


def _tokens(usage: Usage) -> dict[str, int]:
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}


def _as_result(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "model": answer.model,
        "truncated": answer.truncated,
        "usage": _tokens(answer.usage),
        "latency_ms": answer.latency_ms,
    }


def _with_pictures(page: dict[str, Any], folder: Path) -> tuple[dict[str, Any], Parts]:
    """Return the page and the pictures in the folder, under plain names, also in its Markdown and its layout."""
    parts: Parts = []
    for path in sorted(folder.iterdir())[:MAX_ATTACHMENTS] if folder.is_dir() else ():
        data = path.read_bytes()
        parts.append((Attachment(name=path.name, media_type="image/png", size=len(data)), data))
        shown = f"{folder.name}/{path.name}"
        page["text"] = page["text"].replace(f"]({shown})", f"]({path.name})")
        for block in (page["layout"] or {}).get("blocks", ()):
            if block.get("link") == shown:
                block["link"] = path.name
    return page, parts


def _bad(message: str, code: str = "bad_request") -> UnitError:
    return UnitError(message, kind=ErrorKind.PERMANENT, code=code)


def _code(code: str) -> str:
    return MODEL_NOT_AVAILABLE if code in _OF_THIS_NODE else code
