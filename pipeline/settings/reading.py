"""How pages are read on this machine, by whichever flow."""

from typing import Literal

from pydantic import BaseModel

Layout = Literal["auto", "geometry", "model"]
SecondOpinion = Literal["auto", "off"]


class ReadingSettings(BaseModel):
    """What all flows that read files have in common."""

    layout: Layout = "auto"
    """Who says what is where on a page: `geometry`, the places of the words and lines alone; `model`, a small layout
    model beside it, on each page; `auto`, the model where geometry is unsure, and on pages that are recognised."""

    second_opinion: SecondOpinion = "auto"
    """Whether pages that text recognition is unsure of are read by Tesseract as well: `auto`, where it is on the
    PATH, with the language packs it has; `off`, never."""
