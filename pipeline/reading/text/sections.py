"""What was read, in sections."""

from dataclasses import dataclass, field

SEPARATOR = "\n\n"
"""What stands between two sections in the whole text."""


@dataclass(frozen=True)
class Section:
    """Part of what was read: a page, a slide, a web page of a sitemap, or all of it.

    `plain`: the text is not Markdown (source code, JSON): a `#` in it makes no heading.
    """

    text: str
    page: int | None = None
    source: str = ""
    """The address of the web page that it comes from."""
    plain: bool = False


@dataclass(frozen=True)
class Reading:
    """All that was read. `warnings`: what was left out, in sentences for people."""

    title: str
    sections: list[Section]
    warnings: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text, to which the offsets of chunks refer."""
        return SEPARATOR.join(section.text for section in self.sections)
