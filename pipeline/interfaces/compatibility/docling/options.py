"""The options of docling-serve that Penstock supports. It ignores all others."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from pipeline.flows.documents.submission import Options
from pipeline.interfaces.http.fields import Base64, Line, Url, Word, clean_lines
from pipeline.interfaces.http.submission import Budget
from pipeline.operations.refusal import Refused
from pipeline.settings import LOCAL

Format = Literal["md", "json", "html", "text", "doctags"]
MAX_PAGE_BREAK = 60

_NO_END = 10**9
_STORAGE = (
    "presigned_url and other remote targets need artifact storage to be configured, and Penstock has none: use inbody"
)


def _listed(value: object) -> object:
    """Split a text at commas, so that one value becomes a list of one; return other values unchanged."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _page_range(value: object) -> object:
    """Turn `1-3` or `["1-3"]`, as forms send a range, into a list of its numbers; return other values unchanged."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return [int(number[:18]) for number in re.findall(r"[0-9]+", value[:100])] if isinstance(value, str) else value


def _page_break(text: str) -> str:
    clean_lines(text.replace("\f", ""))
    return text


def _in_order(value: tuple[int, int]) -> tuple[int, int]:
    first, last = value
    if not 1 <= first <= last:
        raise ValueError("the first page is 1, and the last is not before the first")
    return value


Page = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Clients send the largest number of their language for "to the end"."""
PageRange = Annotated[tuple[Page, Page], BeforeValidator(_page_range), AfterValidator(_in_order)]
PageBreak = Annotated[str, StringConstraints(max_length=MAX_PAGE_BREAK), AfterValidator(_page_break)]
Formats = Annotated[Annotated[list[Format], Field(min_length=1, max_length=20)], BeforeValidator(_listed)]


class _Options(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, data: Any) -> Any:
        """Drop empty texts, which forms send for unset fields."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value not in ("", [""], None)}


class ConvertOptions(_Options):
    """The options of a conversion. `provider`, `model`, `escalate` and `budget` are additions of Penstock."""

    to_formats: Formats = ["md"]
    page_range: PageRange | None = Field(default=None, description="First and last page, from 1.")
    document_timeout: float | None = Field(
        default=None, gt=0, le=86_400, description="Longest wait of a synchronous call, in seconds."
    )
    abort_on_error: bool = Field(default=False, description="Give no result if any page fails.")
    image_export_mode: Literal["placeholder", "embedded", "referenced"] = Field(
        default="placeholder", description="`embedded`: pictures as data URIs, after local conversion only."
    )
    md_page_break_placeholder: PageBreak = ""
    provider: Word | None = Field(default=None, description="A configured provider; default: the server's.")
    model: Line = ""
    escalate: Word | None = Field(default=None, description="The provider for doubtful and failed pages.")
    budget: Budget = ""

    def submission(self, default_provider: str) -> Options:
        """The options to submit. Keeps pictures only for `embedded` with local conversion."""
        provider = self.provider or ""
        embedded = self.image_export_mode == "embedded" and (provider or default_provider) == LOCAL
        return Options(
            page_range=self.pages,
            provider=provider,
            model=self.model,
            allow_partial=not self.abort_on_error,
            pictures=embedded,
            escalate=self.escalate or "",
            budget=self.budget,
        )

    @property
    def pages(self) -> str:
        """The page range as Penstock writes it; empty for all."""
        if self.page_range is None or self.page_range == (1, max(self.page_range[1], _NO_END)):
            return ""
        first, last = self.page_range
        return f"{first}-" if last >= _NO_END else f"{first}-{last}"


Chunker = Literal["hybrid", "hierarchical"]


class ChunkOptions(_Options):
    """The options of a chunker. `max_tokens` and `merge_peers` are those of the hybrid chunker."""

    max_tokens: int = Field(default=512, ge=8, le=32_768, description="Most tokens of a chunk with its headings.")
    use_markdown_tables: bool = Field(default=False, description="Tables as Markdown, not as `row, column = value`.")
    include_raw_text: bool = Field(default=False, description="Add the text without its headings.")
    merge_peers: bool = Field(default=True, description="Join short neighbours below the same headings.")


class Target(BaseModel):
    """The target of results: the answer, as JSON (`inbody`) or as a ZIP file (`zip`)."""

    kind: Line = "inbody"


class HttpSource(BaseModel):
    """A file that the server fetches."""

    kind: Literal["http"]
    url: Url


class FileSource(BaseModel):
    """A file in the request itself."""

    kind: Literal["file"]
    base64_string: Base64 = Field(description="The file; the whole request must fit into `api.max_json_mb`.")
    filename: Line


Source = Annotated[HttpSource | FileSource, Field(discriminator="kind")]


Sources = Annotated[list[Source], Field(min_length=1, max_length=20)]


HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,60}$")]
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]([\x20-\x7e]{0,1998}[\x21-\x7e])?$")]
_OURS = frozenset({"host", "content-length", "content-type", "connection", "transfer-encoding", "te", "upgrade"})


class CallbackSpec(BaseModel):
    """An address that gets the progress of the task."""

    url: Url
    headers: dict[HeaderName, HeaderValue] = Field(default={}, max_length=10)
    ca_cert: Literal[""] = Field(default="", description="Not supported: certificates of public authorities count.")

    @model_validator(mode="after")
    def _without_our_headers(self) -> Self:
        if ours := sorted(
            name for name in self.headers if name.lower() in _OURS or name.lower().startswith("webhook-")
        ):
            raise ValueError(f"callbacks may not set {', '.join(ours)}")
        return self


Callbacks = Annotated[list[CallbackSpec], Field(max_length=5)]


class ConvertRequest(BaseModel):
    """The body of `/v1/convert/source`."""

    options: ConvertOptions = ConvertOptions()
    sources: Sources
    target: Target = Target()
    callbacks: Callbacks = []


class ChunkRequest(BaseModel):
    """The body of `/v1/chunk/{chunker}/source`."""

    convert_options: ConvertOptions = ConvertOptions()
    chunking_options: ChunkOptions = ChunkOptions()
    sources: Sources
    include_converted_doc: bool = Field(default=False, description="Add the converted documents to the answer.")
    target: Target = Target()
    callbacks: Callbacks = []


Model = TypeVar("Model", bound=BaseModel)


def of_form(fields: Mapping[str, list[str]]) -> tuple[ConvertOptions, bool]:
    """Return (options, whether to answer with a ZIP file) from the values of a form's fields. `to_formats` and
    `page_range` may be repeated; of others, the last value counts.

    Raises `Refused` for invalid values.
    """
    return _valid(ConvertOptions, _joined(fields)), as_zip(_last(fields, "target_type", "inbody"))


def chunking_of_form(fields: Mapping[str, list[str]]) -> tuple[ConvertOptions, ChunkOptions, bool]:
    """Return (options of the conversion, named `convert_…`; of the chunker, named `chunking_…`; whether to add the
    documents) from the values of a form's fields. Raises `Refused` for invalid values."""
    check_inbody(_last(fields, "target_type", "inbody"))
    convert, chunk = (
        {name.removeprefix(prefix): values for name, values in fields.items() if name.startswith(prefix)}
        for prefix in ("convert_", "chunking_")
    )
    included = _last(fields, "include_converted_doc", "").lower() in {"true", "1", "on", "yes"}
    return _valid(ConvertOptions, _joined(convert)), _valid(ChunkOptions, _joined(chunk)), included


def _last(fields: Mapping[str, list[str]], name: str, default: str) -> str:
    return (fields.get(name) or [""])[-1] or default


def _joined(fields: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return one value for each field."""
    given: dict[str, Any] = {name: values[-1] for name, values in fields.items()}
    if formats := fields.get("to_formats"):
        given["to_formats"] = ",".join(formats[:20])
    if pages := fields.get("page_range"):
        given["page_range"] = "-".join(pages[:3])
    return given


def _valid(model: type[Model], given: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5])
        raise Refused(faults[:1000], code="invalid") from None


def as_zip(target: str) -> bool:
    """Whether to answer with a ZIP file. Raises `Refused` for targets elsewhere.

    docling-client asks for `presigned_url` first, and for `inbody` once the server answers that it has no storage.
    """
    if target not in {"inbody", "zip"}:
        raise Refused(_STORAGE, code="unsupported_target")
    return target == "zip"


def check_inbody(target: str) -> None:
    """Raise `Refused` for another target of chunks than the answer."""
    if as_zip(target):
        raise Refused("chunks come in the answer itself: use the target inbody", code="unsupported_target")
