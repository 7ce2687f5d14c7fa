"""The console's own text uses only characters of all fonts. It draws arrows and triangles."""

from pathlib import Path

from pipeline.interfaces.console.addresses import STATIC

EVERYWHERE = set("–—‘’“”„…‹›−·×")
"""The characters beyond Latin-1 and its first extension that every font for Latin text has."""


def test_the_console_asks_for_no_glyph_that_a_font_may_lack() -> None:
    sources = [*STATIC.rglob("*.css"), *STATIC.rglob("*.js"), *(STATIC.parent / "templates").rglob("*.html")]
    odd = {
        f"{path.name}: {character}"
        for path in sources
        for character in Path(path).read_text(encoding="utf-8")
        if ord(character) > 0x17F and character not in EVERYWHERE
    }
    assert not odd
