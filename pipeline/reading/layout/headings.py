"""Find headings by size, weight and numbering; the document's profile decides their levels."""

import re
from collections.abc import Iterable, Iterator, Sequence

from pipeline.reading.layout import looks
from pipeline.reading.layout.model import Block, Box, Heading, Run, around, holds, plain
from pipeline.reading.layout.paragraphs import Group
from pipeline.reading.layout.profile import RECOGNISED_LARGER, DocumentProfile, style_key
from pipeline.reading.layout.rows import Row
from pipeline.reading.layout.text import ITEM, has_leader, is_label, number_depth

LARGER = 1.12
"""The least size of a heading that is not bold, in sizes of the running text."""

_CAPITALS_SIZE = 0.85
_TITLE_SIZE = 0.9
_LABEL_SIZE = 0.85  # of the value beside it, at most
_LOWEST_LEVEL = 4
_HEAVY_SIZE = 0.93
_MAX_OVER_ROWS = 2
_MAX_CHARS = 200
_MAX_ROWS = 4
_MAX_NUMBERED = 80
_SHORTER = 2.0  # text sizes than its column
_TABULATOR = 4.0  # text sizes
_MIN_TEXT = 30  # characters below a heading that only its number shows
_MAX_LEVEL = 6
_NUMBER = re.compile(r"(?:\d{1,2}|[A-Z])(?:\.\d{1,2}){0,4}\.?")
_NO_HEADING_END = re.compile(r"[.,;。，；、…][\"'”’)\]]*$")
_CAPTION = re.compile(
    r"(?:table|figure|fig\.?|tab\.|tabelle|abbildung|abb\.|tableau|tabla|tabela|tabella|figura|listing|algorithm|scheme"
    r"|plate|рис\.|рисунок|таблица|图|圖|表|그림|표)\s*(?:(?-i:[A-Z])[-–.]?)?(?:\d[-–.\d]*|(?-i:[IVX]+|[A-Z])\b)",
    re.IGNORECASE,
)
_NOTICE = re.compile(
    r"(?:note|n\.?b\.?|warning|caution|danger|important|tip|hint|notice|attention|hinweis|achtung|warnung|wichtig|tipp"
    r"|vorsicht|remarque|avertissement|astuce|nota|aviso|advertencia|precaución|atención|atenção|avvertenza|attenzione"
    r"|uwaga|примечание|внимание|注意|注|警告|重要|提示|ヒント|참고|주의)\s*[:!：！]?",
    re.IGNORECASE,
)
_MONTH = (
    r"(?:jan(?:uary?|vier|eiro)?|gennaio|enero|feb(?:ruary?|braio|rero)?|f[ée]v(?:rier|ereiro)?|mar(?:ch|s|zo|ço)?|märz"
    r"|apr(?:ile?)?|avril|abril|may|mai|mayo|maio|maggio|jun(?:[ei]|io|ho)?|juin|giugno|jul(?:[yi]|io|ho)?|juillet"
    r"|luglio|aug(?:ust)?|août|agosto|sep(?:t|tember|tembre|tiembre)?|settembre|setembro|o[ck]t(?:ober|obre|ubre)?"
    r"|ottobre|outubro|nov(?:ember|embre|iembre|embro)?|d[eéi][cz](?:ember|embre|iembre|embro)?)\.?"
)
_DATE = re.compile(
    rf"(?:[^\W\d]+[:,]?\s+)?(?:(?:\d{{1,2}}(?:\.|st|nd|rd|th|er|º)?\s+(?:de\s+)?)?{_MONTH}"
    r"(?:\s+\d{1,2}(?:st|nd|rd|th)?)?,?\s+(?:de\s+)?(?:19|20)\d\d|(?:19|20)\d\d[-/.]\d\d?[-/.]\d\d?)",
    re.IGNORECASE,
)
_ARTICLE = re.compile(
    r"(?:§+\s*\d+[a-z]?|(?:article|artikel|artículo|articolo|artigo|section|chapter|chapitre|kapitel|capítulo|part|teil"
    r"|title|annexe?|anlage|anhang|appendix|schedule)\s+(?:\d+[a-z]?|(?-i:[IVXLC]+|[A-Z])\b))[.:]?",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:chapter|part|appendix|kapitel|teil|anhang|chapitre|partie|annexe?|capítulo|parte|capitolo|hoofdstuk|глава)"
    r"\s+(?:\d{1,3}|(?-i:[IVXLC]+|[A-Z])|(?-i:[A-Z]{3,12}))[.:]?|chapter",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"<?(?:(?:https?://|www\.)\S+|\S+@[\w-]+\.[\w.-]+)>?", re.IGNORECASE)
_DASHES = ("-", "—", "–")


def heading(
    group: Group, profile: DocumentProfile, *, recognised: bool, page_size: float, titles: Sequence[Box] = ()
) -> Heading | None:
    """Return the group as a heading with its level, or None if it is none. `recognised`: its sizes come from a picture
    and vary by chance.

    `page_size`: the size of most of the page's text, 0 if the page has little text. `titles`: where a layout model sees
    titles; in recognised text, whose weight is unknown, they are headings in the size of the text, too.
    """
    size = max(row.size for row in group.rows)
    if not _may_be_heading(group, larger=size >= LARGER * profile.body_size):
        return None
    if any(row.is_plain for row in group.rows) and _DATE.fullmatch(group.text):
        return None
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
        is_title = size >= _TITLE_SIZE * profile.body_size and _is_within(group, titles)
        level = level or _lowest(profile) if is_title or _is_in_capitals(group, profile) else None
    if level is None:
        return None
    depth = number_depth(group.text) if recognised else 0
    usual = profile.depths.get(style_key(size, bold=bold), 0)
    return Heading(group.box, group.runs, depth if depth > 1 else _deepened(level, group.text, usual))


def with_labels(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks; a heading such as "Chapter 9" and the title below it become one heading."""
    label: Heading | None = None
    for block in blocks:
        if label is not None:
            if isinstance(block, Heading):
                box, runs = around([label.box, block.box]), (*label.runs, Run(" "), *block.runs)
                block = Heading(box, runs, min(label.level, block.level))  # noqa: PLW2901
            else:
                yield label
        label = block if isinstance(block, Heading) and _LABEL.fullmatch(plain(block.runs)) else None
        if label is None:
            yield block
    if label is not None:
        yield label


def numbered(group: Group, following: Group, profile: DocumentProfile) -> Heading | None:
    """Return a line in the text's type as a heading if it is an article, or has a number of several parts, and text
    follows; otherwise None."""
    row, text = group.rows[0], group.text
    article, depth = _ARTICLE.match(text), number_depth(text)
    title = text[article.end() :].lstrip(" –—-(") if article else text.lstrip("0123456789. ")
    if len(group.rows) > 1 or len(text) > _MAX_NUMBERED or row.is_tabular or not (article or depth > 1):
        return None
    if group.right - row.right < _SHORTER * row.size or has_leader(text) or _NO_HEADING_END.search(title):
        return None
    if title[:1].isupper() if title else article:
        next_text = following.text
        if following.size > LARGER * row.size or following.rows[0].is_bold:
            return None  # the label above a title
        if len(next_text) < _MIN_TEXT or number_depth(next_text) > 1 or _ARTICLE.match(next_text):
            return None
        known = {**profile.headings, **profile.looks}
        levels = [level + depth - profile.depths[key] for key, level in known.items() if profile.depths.get(key)]
        level = levels[0] if levels and depth else max(known.values(), default=0) + 1
        return Heading(group.box, group.runs, min(_MAX_LEVEL, max(1, level)))
    return None


def over_text(group: Group, following: Group, profile: DocumentProfile) -> Heading | None:
    """Return a recognised line that is heavier or larger than the text, and than the text that follows, as a heading;
    otherwise None."""
    row, after, text, depth = group.rows[0], following.rows[0], group.text, number_depth(group.text)
    if (
        len(group.rows) > _MAX_OVER_ROWS
        or len(text) > _MAX_NUMBERED
        or not _may_be_heading(group, larger=row.size >= LARGER * profile.body_size)
    ):
        return None
    begins = bool(depth) or text[:1].isupper()
    ends = group.right - max(row.right for row in group.rows) >= _SHORTER * row.size
    is_over = len(following.text) >= _MIN_TEXT or 0 < depth < number_depth(following.text)
    if not (begins and ends and is_over and all(row.is_measured for row in group.rows)):
        return None
    if after.is_tabular or after.is_heavy:
        return None
    size = profile.body_size if depth else max(profile.body_size, after.size)
    heavy = all(row.is_heavy for row in group.rows) and row.size >= _HEAVY_SIZE * size
    if not heavy and row.size < LARGER * size:
        return None
    level = depth if depth > 1 else _level(row.size, profile, bold=False) or _lowest(profile)
    return Heading(group.box, group.runs, level)


def _lowest(profile: DocumentProfile) -> int:
    """Return the level of headings in the size of recognised text."""
    return min(_LOWEST_LEVEL, max(profile.headings.values(), default=1) + 1)


def has_number_apart(row: Row) -> bool:
    """Whether the row is the number of a section and, a tabulator away, a title in the same size."""
    number, *title = row.cells
    near = len(title) == 1 and title[0].left - number.right < _TABULATOR * row.size
    return near and _NUMBER.fullmatch(number.text.strip()) is not None and abs(number.size - title[0].size) < 0.5


def _may_be_heading(group: Group, *, larger: bool) -> bool:
    """Whether the text is as short as a heading, and not a sentence, item, caption, notice, address or row of cells.

    `larger`: it is larger than the running text."""
    text = group.text
    if len(group.rows) > _MAX_ROWS or len(text) > _MAX_CHARS or sum(map(str.isalpha, text)) < 2:
        return False
    if (
        (_NO_HEADING_END.search(text) and not (_LABEL.fullmatch(text) or (larger and _is_stopped_title(group))))
        or text.count(",") > 2
        or any(row.is_tabular and not ((larger or row.is_bold) and has_number_apart(row)) for row in group.rows)
        or any(is_label(row.cells[0].text) and row.cells[0].size < _LABEL_SIZE * row.size for row in group.rows)
    ):
        return False
    if _CAPTION.match(text) or _NOTICE.fullmatch(text) or _ADDRESS.fullmatch(text.rpartition(" ")[2]):
        return False
    item = ITEM.match(text)
    bulleted = item is not None and not item["marker"][0].isdigit()
    return not (bulleted or text.startswith(_DASHES) or has_leader(text))


def _is_stopped_title(group: Group) -> bool:
    """Whether the group is one bold line that ends with a full stop and has no other."""
    text = group.text
    return len(group.rows) == 1 and group.rows[0].is_bold and text.endswith(".") and ". " not in text


def _is_within(group: Group, boxes: Sequence[Box]) -> bool:
    """Whether all rows of the group, which does not go on from a line above, are in one of the boxes."""
    return not group.text[:1].islower() and any(
        all(holds(box, cell) for row in group.rows for cell in row.cells) for box in boxes
    )


def _is_bold_with_code(group: Group) -> bool:
    """Whether the group has a number of several parts, and is bold except for words in monospaced type."""
    words = [token for token in group.tokens if any(map(str.isalnum, token.text)) and not token.style.mono]
    return bool(words) and all(token.style.bold for token in words) and number_depth(group.text) > 1


def _is_in_capitals(group: Group, profile: DocumentProfile) -> bool:
    """Whether the group is one line of a few words in capitals, not much smaller than the text."""
    words = group.text.split()
    letters = [letter for letter in group.text if letter.isalpha()]
    large = group.size >= _CAPITALS_SIZE * profile.body_size
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
