"""Settings for reading pages on this machine, in any flow."""

from typing import Literal

from pydantic import BaseModel

Layout = Literal["auto", "geometry", "model"]
SecondOpinion = Literal["auto", "off"]


class ReadingSettings(BaseModel):
    """Settings shared by all flows that read files."""

    layout: Layout = "auto"
    """How the layout of a page is found: `geometry`, from the places of words and lines alone; `model`, also with a
    small layout model on each page; `auto`, with the model where geometry is unsure, and on recognised pages."""

    second_opinion: SecondOpinion = "auto"
    """Whether Tesseract also reads pages of which text recognition is unsure: `auto`, if it is on the PATH, with its
    language packs; `off`, never."""
