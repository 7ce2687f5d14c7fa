"""Types of the texts in messages that people get to see: bounded, one line each."""

import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""What moves a terminal's cursor, or turns the direction of writing."""
_CONTROL = re.compile(f"[{_CONTROLS}]")


def _shown(text: str) -> str:
    return _CONTROL.sub(" ", text)


SHOWN = AfterValidator(_shown)
"""Blanks for control characters: who passes on another program's words is not at fault for them."""
ModelName = Annotated[str, StringConstraints(max_length=120, pattern=f"^[^{_CONTROLS}]*$")]
Name = Annotated[str, StringConstraints(max_length=120), SHOWN]
Line = Annotated[str, StringConstraints(max_length=2000), SHOWN]
