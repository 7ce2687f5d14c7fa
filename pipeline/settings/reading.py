"""Settings for reading pages on this machine, in any flow."""

from typing import Literal

from pydantic import BaseModel

Layout = Literal["auto", "geometry", "model"]
SecondOpinion = Literal["auto", "off"]


class ReadingSettings(BaseModel):
    """Settings shared by all flows that read files."""

    layout: Layout = "auto"
    """How local conversion finds the parts of a page, also in the files of knowledge bases. `geometry`: the places of
    words and lines alone. `model`: a small layout model as well, on every page (0.1 s a page and 0.1 GB a process
    more). `auto`: the model where geometry is unsure, and on recognised pages."""

    second_opinion: SecondOpinion = "auto"
    """Whether Tesseract also reads pages of documents of which text recognition is unsure: `auto`, if `tesseract` is on
    the PATH, with its installed language packs; `off`, never. See docs/explanation/conversion.md."""
