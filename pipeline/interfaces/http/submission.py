"""How to convert a file, as requests say it."""

from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import AliasChoices, Field, StringConstraints, ValidationError

from pipeline.flows.documents.submission import Options
from pipeline.interfaces.http.fields import Choice, Strict
from pipeline.interfaces.http.uploads import Form

PageRange = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[0-9,\- ]*$")]
PAGES = AliasChoices("pages", "page_range")
"""The current and the former name of the pages to convert."""


class SubmitOptions(Strict):
    """How to convert a file."""

    page_range: PageRange = Field(
        default="", description="Such as `1-5,7`; empty for all.", examples=["1-5,7"], validation_alias=PAGES
    )
    provider: Choice = Field(default="", description="A configured provider; empty for the server's choice.")
    model: Choice = ""
    allow_partial: bool = Field(default=False, description="Merge what there is when pages fail for good.")
    use_cache: bool = True
    pictures: bool = Field(default=False, description="Keep the pictures on its pages; local conversion only.")
    fresh: bool = Field(default=False, description="Make a new document even if the same file was submitted before.")


def options_of(form: Form) -> Options:
    """How to convert what the form holds. Raises what is answered with 422."""
    given: dict[str, Any] = {name: values[-1] for name, values in form.fields.items() if name != "wait"}
    try:
        chosen = SubmitOptions.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None
    return Options(**chosen.model_dump())
