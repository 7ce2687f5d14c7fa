"""Types of the fields in forms and queries; an empty form field counts as absent."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from pipeline.interfaces.http.fields import CLEAN, clean_lines

BLANK = BeforeValidator(lambda value: None if value == "" else value)
"""For `Annotated[… | None, BLANK]`: an empty field is None."""
CursorText = Annotated[str, StringConstraints(max_length=500), CLEAN]
"""The start of the next page of a list, in a query's model; `pages.decode` reads it."""


def _unix(text: str) -> str:
    return clean_lines(text.replace("\r\n", "\n"))


AREA = AfterValidator(_unix)
"""For the text of a `<textarea>`, which browsers send with CRLF."""
