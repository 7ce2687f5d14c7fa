"""The options of docling-serve that Penstock supports. It ignores all others."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

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


class ConvertOptions(BaseModel):
    """The options of a conversion. `provider` and `model` are additions of Penstock."""

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

    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, data: Any) -> Any:
        """Drop empty texts, which forms send for unset fields."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value not in ("", [""], None)}

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
        )

    @property
    def pages(self) -> str:
        """The page range as Penstock writes it; empty for all."""
        if self.page_range is None or self.page_range == (1, max(self.page_range[1], _NO_END)):
            return ""
        first, last = self.page_range
        return f"{first}-" if last >= _NO_END else f"{first}-{last}"


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


class ConvertRequest(BaseModel):
    """The body of `/v1/convert/source`."""

    options: ConvertOptions = ConvertOptions()
    sources: list[Source] = Field(min_length=1, max_length=20)
    target: Target = Target()


def of_form(fields: Mapping[str, list[str]]) -> tuple[ConvertOptions, bool]:
    """Return (options, whether to answer with a ZIP file) from the values of a form's fields. `to_formats` and
    `page_range` may be repeated; of others, the last value counts.

    Raises `Refused` for invalid values.
    """
    fields_given: dict[str, Any] = {name: values[-1] for name, values in fields.items()}
    if formats := fields.get("to_formats"):
        fields_given["to_formats"] = ",".join(formats[:20])
    if pages := fields.get("page_range"):
        fields_given["page_range"] = "-".join(pages[:3])
    try:
        options = ConvertOptions.model_validate(fields_given)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5])
        raise Refused(faults[:1000], code="invalid") from None
    return options, as_zip(fields_given.get("target_type") or "inbody")


def as_zip(target: str) -> bool:
    """Whether to answer with a ZIP file. Raises `Refused` for targets elsewhere.

    docling-client asks for `presigned_url` first, and for `inbody` once the server answers that it has no storage.
    """
    if target not in {"inbody", "zip"}:
        raise Refused(_STORAGE, code="unsupported_target")
    return target == "zip"
