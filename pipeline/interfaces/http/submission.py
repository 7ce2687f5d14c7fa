"""The fields of requests that say how to convert a file."""

from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, AliasChoices, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from pipeline.flows.documents.rules.escalation import parse_budget
from pipeline.flows.documents.submission import Options
from pipeline.interfaces.http.fields import Choice, Strict
from pipeline.interfaces.http.uploads import Form


def _checked_budget(text: str) -> str:
    try:
        parse_budget(text)
    except ValueError as error:
        raise PydanticCustomError("budget", "{why}", {"why": str(error)}) from None
    return text


PageRange = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[0-9,\- ]*$")]
Budget = Annotated[
    str,
    StringConstraints(max_length=15),
    AfterValidator(_checked_budget),
    Field(
        description="The most that escalation may cost: money, such as `2.00`, or pages, such as `20p`.",
        json_schema_extra={"pattern": r"^([0-9]{1,7}(\.[0-9]{1,6})?|[0-9]{1,7}p)?$"},
    ),
]
PAGES = AliasChoices("pages", "page_range")
"""The current and the former name of the pages to convert."""


class SubmitOptions(Strict):
    """How to convert a file."""

    page_range: PageRange = Field(
        default="", description="Such as `1-5,7`; empty for all.", examples=["1-5,7"], validation_alias=PAGES
    )
    provider: Choice = Field(default="", description="A configured provider; empty for the server's choice.")
    model: Choice = ""
    allow_partial: bool = Field(default=False, description="Merge the completed pages though others failed.")
    use_cache: bool = True
    pictures: bool = Field(default=False, description="Keep the pictures on its pages; local conversion only.")
    fresh: bool = Field(default=False, description="Make a new document even if one of the same file exists.")
    escalate: Choice = Field(
        default="", description="The provider for doubtful and failed pages; `none`: leave them; empty: the server's."
    )
    budget: Budget = ""


class FormOptions(SubmitOptions):
    """How to convert an uploaded file."""

    password: Annotated[str, StringConstraints(max_length=1000)] = Field(
        default="", description="Opens an encrypted PDF; Penstock does not store it.", repr=False
    )


def options_of(form: Form) -> Options:
    """Return the form's options of a conversion. Raises `RequestValidationError` (422) for unknown or wrong fields."""
    form_values: dict[str, Any] = {name: values[-1] for name, values in form.fields.items() if name != "wait"}
    try:
        chosen = FormOptions.model_validate(form_values)
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None
    return Options(**chosen.model_dump())
