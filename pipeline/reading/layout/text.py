"""Rules about text without layout: scripts, bullets, ends of sentences, and joining lines."""

import re
from collections.abc import Iterable

from pipeline.reading.layout.model import HARD_HYPHEN, NO_HYPHEN, SOFT_HYPHEN

DASHES = "*–—−-"
"""A list's markers that also stand between words."""

BOXES = {"☐": "[ ]", "☑": "[x]", "☒": "[x]"}
"""Check boxes, as Markdown shows them at the start of an item."""

BULLETS = "•▪‣◦●○■□◆◇✓✔➢➤►▶❖⁃∙⦁" + "".join(BOXES)
ITEM = re.compile(
    rf"(?P<marker>[{BULLETS}\uf000-\uf0ff]|[{DASHES}](?=\s)|·(?=\s)(?!.*\s·\s)|[o§](?=\s+[A-Z])"
    r"|\(?\d{1,3}[.)](?=\s)|\(?[a-z][.)](?=\s)|\([ivx]{1,5}\)(?=\s)|[A-Z]\)(?=\s)|[ivx]{2,5}[.)](?=\s))\s*(?=\S)"
)
"""A list's bullet or number before text."""

CJK = re.compile(r"[\u2e80-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003134f]")
NUMBER = re.compile(
    r"[-+−(±<>~≈]?[$€£¥₩]?[-+−]?\d[\d,.\s'/:±%()]*[A-Za-z%€$£°×]{0,4}[)*†]?|[-–—]|n/?a|nan", re.IGNORECASE
)
"""A number with its signs and unit, or what stands for none."""

PAIR = re.compile(r"[^\W\d][^:：]{1,30}[:：] *\S")
"""A label and its value."""

_LEADER = re.compile(r"(?:\.\s?){5,}|\.{3,}\s*\d+$|(?<![.\s])(?:\s\.){2,5}\s?\d{1,4}$|…{3,}|(?:·\s?){5,}|_{5,}")
_DOTS = 5  # the fewest full stops of a leader without a space before them
_NUMBERED = re.compile(r"((?:[A-Z]\.)?\d{1,2}(?:\.\d{1,2}){0,4})\.?\s+\S")
_PAGE = re.compile(r"\d{1,4}|[ivxlcIVXLC]{1,7}")
_SENTENCE_END = re.compile(r"[.!?:;。！？：；…؟؛۔׃][\"'”’)\]]*$")
RIGHT_TO_LEFT = re.compile(r"[\u0590-\u065f\u066e-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def number_depth(text: str) -> int:
    """Return the depth of a heading's number: 1 for "2 Method", 2 for "2.1 Data" and "A.1 Data"; 0 without one."""
    match = _NUMBERED.match(text)
    return match.group(1).count(".") + 1 if match else 0


def is_bullet(text: str) -> bool:
    """Whether the text is a single bullet."""
    return len(text) == 1 and (text in BULLETS or text in "*–−-o§" or "\uf000" <= text <= "\uf0ff")


def has_leader(text: str) -> bool:
    """Whether dots lead from a title to its page number."""
    dotted = "..." in text or " ." in text or text.count(".") >= _DOTS
    return (dotted or "____" in text or "……" in text or "·" in text) and bool(_LEADER.search(text))


def is_label(text: str) -> bool:
    """Whether the text is a label of a value beside it."""
    return text.rstrip().endswith((":", "："))


def is_number(text: str) -> bool:
    """Whether the text is only a number, with its signs and unit."""
    return bool(NUMBER.fullmatch(text)) and any(map(str.isdigit, text))


def is_page_number(text: str) -> bool:
    """Whether the text is only a number, in digits or Roman."""
    return bool(_PAGE.fullmatch(text.strip()))


def ends_sentence(text: str) -> bool:
    return bool(_SENTENCE_END.search(text.rstrip()))


def is_right_to_left(text: str) -> bool:
    """Whether most letters are Hebrew, Arabic or of a related script; False without letters."""
    leftward = 0 if text.isascii() else len(RIGHT_TO_LEFT.findall(text))
    return leftward > 0 and leftward > 0.5 * sum(map(str.isalpha, text)) > 0


def join_lines(texts: Iterable[str]) -> str:
    """Join the lines of a paragraph into running text: hyphenated words joined, no spaces between CJK characters."""
    joined = ""
    for text in filter(None, (folded(text) for text in texts)):
        if not joined:
            joined = text
            continue
        cut, spaced = seam(joined, text)
        joined = (joined[:-1] if cut else joined) + (" " if spaced else "") + text
    return clean(joined)


def seam(first: str, second: str) -> tuple[bool, bool]:
    """Return, for the place where two lines join, (whether to drop the hyphen that ends `first`, whether to insert a
    space)."""
    if first.endswith(HARD_HYPHEN):
        return False, False
    if first.endswith(NO_HYPHEN):
        return True, False
    hyphenated = first.endswith((SOFT_HYPHEN, "-", "\u2010"))
    if hyphenated and first[-2:-1].isalpha() and second[:1].islower():
        # `state-of-the-` keeps its hyphen: it ends a word of the compound, not a syllable.
        return "-" not in first.rsplit(None, 1)[-1][:-1], False
    if hyphenated and not first[-2:-1].isspace() and len(first) > 1:
        return False, False
    return False, not (CJK.match(first[-1]) and CJK.match(second))


def folded(text: str) -> str:
    return " ".join(text.split())


def with_hyphens(text: str) -> str:
    """Return the text with visible hyphens in place of the marks that end lines."""
    if text.isascii():
        return text
    return text.replace(SOFT_HYPHEN, "-").replace(HARD_HYPHEN, "-").replace(NO_HYPHEN, "-")


def clean(text: str) -> str:
    """Return the text with single spaces and visible hyphens."""
    return with_hyphens(folded(text))
