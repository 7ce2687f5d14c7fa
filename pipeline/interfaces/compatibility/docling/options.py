"""What a client of docling-serve asks for: the options that mean something here. All others are ignored."""

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
    """One value where a list is expected is a list of one; `a,b` is a list of two."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _page_range(value: object) -> object:
    """Two numbers, also if a form sends them as `1-3`, `[1, 3]` or one by one."""
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
    """The options of a conversion. `provider` and `model` are Penstock's own; forms may send them like any other."""

    to_formats: Formats = ["md"]
    page_range: PageRange | None = Field(default=None, description="First and last page, from 1.")
    document_timeout: float | None = Field(
        default=None, gt=0, le=86_400, description="How long a synchronous call waits, at most."
    )
    abort_on_error: bool = Field(default=False, description="No result at all if any page fails.")
    image_export_mode: Literal["placeholder", "embedded", "referenced"] = Field(
        default="placeholder", description="`embedded`: pictures as data URIs; only of local conversion."
    )
    md_page_break_placeholder: PageBreak = ""
    provider: Word | None = Field(default=None, description="A configured provider; default: the server's.")
    model: Line = ""

    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, data: Any) -> Any:
        """A form sends what is not set as an empty text."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value not in ("", [""], None)}

    def submission(self, default_provider: str) -> Options:
        """What to submit. Pictures are kept only if they are wanted and can be had."""
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
    """Where results go: into the answer, as JSON or as a ZIP file."""

    kind: Line = "inbody"


class HttpSource(BaseModel):
    """A file to be fetched."""

    kind: Literal["http"]
    url: Url


class FileSource(BaseModel):
    """A file in the request itself."""

    kind: Literal["file"]
    base64_string: Base64 = Field(description="The file; the whole request has to fit into `api.max_json_mb`.")
    filename: Line


Source = Annotated[HttpSource | FileSource, Field(discriminator="kind")]


class ConvertRequest(BaseModel):
    """The body of `/v1/convert/source`."""

    options: ConvertOptions = ConvertOptions()
    sources: list[Source] = Field(min_length=1, max_length=20)
    target: Target = Target()


def of_form(fields: Mapping[str, list[str]]) -> tuple[ConvertOptions, bool]:
    """(options, whether a ZIP file is wanted) of a form's fields; those that mean a list may come repeatedly.

    Raises `Refused` for values that cannot be.
    """
    found: dict[str, Any] = {name: values[-1] for name, values in fields.items()}
    if formats := fields.get("to_formats"):
        found["to_formats"] = ",".join(formats[:20])
    if pages := fields.get("page_range"):
        found["page_range"] = "-".join(pages[:3])
    try:
        options = ConvertOptions.model_validate(found)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
        raise Refused(said[:1000], code="invalid") from None
    return options, as_zip(found.get("target_type") or "inbody")


def as_zip(target: str) -> bool:
    """Whether a ZIP file is wanted. Raises `Refused` for targets elsewhere.

    docling-client asks for `presigned_url` first, and for `inbody` once it is told that there is no storage for it.
    """
    if target not in {"inbody", "zip"}:
        raise Refused(_STORAGE, code="unsupported_target")
    return target == "zip"
