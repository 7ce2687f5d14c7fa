"""The text of a file in sections."""

from dataclasses import dataclass, field

SEPARATOR = "\n\n"
"""The text between two sections in the whole text."""


@dataclass(frozen=True)
class Section:
    """A part of the text: a page, a slide, a web page of a sitemap, or all of it.

    `plain`: the text is not Markdown (source code, JSON), so `#` marks no heading.
    """

    text: str
    page: int | None = None
    source: str = ""
    """The address of its web page."""
    plain: bool = False


@dataclass(frozen=True)
class Reading:
    """The whole text. `warnings`: sentences for people about omitted parts."""

    title: str
    sections: list[Section]
    warnings: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of all sections, to which the offsets of chunks refer."""
        return SEPARATOR.join(section.text for section in self.sections)
