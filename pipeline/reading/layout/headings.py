"""Find headings by size, weight and numbering; the document's profile decides their levels."""

import re

from pipeline.reading.layout import looks
from pipeline.reading.layout.model import Heading
from pipeline.reading.layout.paragraphs import Group
from pipeline.reading.layout.profile import RECOGNISED_LARGER, DocumentProfile, style_key
from pipeline.reading.layout.text import ITEM, has_leader, number_depth

LARGER = 1.12
"""The least size of a heading that is not bold, in sizes of the running text."""

_CAPITALS_LEVEL = 2
_MAX_CHARS = 200
_MAX_ROWS = 4
_MAX_LEVEL = 6
_NO_HEADING_END = re.compile(r"[.,;。，；、…][\"'”’)\]]*$")
_CAPTION = re.compile(
    r"(?:table|figure|fig\.|tab\.|tabelle|abbildung|abb\.|tableau|图|圖|表|그림|표)\s*[\d.]+", re.IGNORECASE
)
_DASHES = ("-", "—", "–")


def heading(group: Group, profile: DocumentProfile, *, recognised: bool, page_size: float) -> Heading | None:
    """Return the group as a heading with its level, or None if it is none. `recognised`: its sizes come from a picture
    and vary by chance.

    `page_size`: the size of most of the page's text, 0 if the page has little text.
    """
    if not _may_be_heading(group):
        return None
    size = max(row.size for row in group.rows)
    bold = all(row.is_bold for row in group.rows) or _is_bold_with_code(group)
    if not bold and size >= LARGER * profile.body_size:
        tokens = group.tokens
        bold = 2 * sum(len(t.text) for t in tokens if t.style.bold) > sum(len(t.text) for t in tokens)
    known = None if recognised else _known_look(group, profile)
    if known:
        usual = profile.depths.get(known, 0)
        return Heading(group.box, group.runs, _deepened(profile.looks[known], group.text, usual))
    if size <= 1.05 * page_size and not bold and not recognised:
        return None  # Most of the page has this size: it is the text, however large, as on slides.
    level = _level(size, profile, bold=bold)
    if recognised and (level is None or size < RECOGNISED_LARGER * profile.body_size):
        level = _CAPITALS_LEVEL if _is_in_capitals(group, profile) else None
    if level is None:
        return None
    return Heading(
        group.box, group.runs, _deepened(level, group.text, profile.depths.get(style_key(size, bold=bold), 0))
    )


def _may_be_heading(group: Group) -> bool:
    """Whether the text is as short as a heading, and not a sentence, list item, caption or row of cells."""
    text = group.text
    if len(group.rows) > _MAX_ROWS or len(text) > _MAX_CHARS or sum(map(str.isalpha, text)) < 2:
        return False
    if _NO_HEADING_END.search(text) or text.count(",") > 2 or any(row.is_tabular for row in group.rows):
        return False
    item = ITEM.match(text)
    bulleted = item is not None and not item["marker"][0].isdigit()
    return not (bulleted or _CAPTION.match(text) or text.startswith(_DASHES) or has_leader(text))


def _is_bold_with_code(group: Group) -> bool:
    """Whether the group has a number of several parts, and is bold except for words in monospaced type."""
    words = [token for token in group.tokens if any(map(str.isalnum, token.text)) and not token.style.mono]
    return bool(words) and all(token.style.bold for token in words) and number_depth(group.text) > 1


def _is_in_capitals(group: Group, profile: DocumentProfile) -> bool:
    """Whether the group is one line of capitals, a little larger than the text: recognition cannot see bold type."""
    words = group.text.split()
    letters = [letter for letter in group.text if letter.isalpha()]
    large = group.size >= LARGER * profile.body_size
    return large and len(group.rows) == 1 and len(words) <= 6 and len(letters) > 3 and all(map(str.isupper, letters))


def _level(size: float, profile: DocumentProfile, *, bold: bool) -> int | None:
    """Return the level of a style; a style unknown to the profile gets the level of the nearest one of its kind."""
    key = style_key(size, bold=bold)
    if key in profile.headings:
        return profile.headings[key]
    if size >= LARGER * profile.body_size:
        near = [
            (abs(float(name.rstrip("b")) - size), level)
            for name, level in profile.headings.items()
            if not name.endswith("m") and name.endswith("b") == bold
        ]
        if near and min(near)[0] <= 0.06 * size:
            return min(near)[1]
    return None


def _known_look(group: Group, profile: DocumentProfile) -> str:
    """Return the look of a heading in the text's size, if all lines of the group share it; otherwise empty."""
    shared = {looks.look(cell) for row in group.rows for cell in row.cells} if profile.looks else set()
    return key if len(shared) == 1 and (key := shared.pop()) in profile.looks and group.text[:1] != "(" else ""


def _deepened(level: int, text: str, usual: int) -> int:
    """Return the level, adjusted if the heading's number is deeper or less deep than usual in its style."""
    depth = number_depth(text)
    return min(_MAX_LEVEL, max(1, level + depth - usual)) if usual and depth else level
