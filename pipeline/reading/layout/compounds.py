"""Decide whether a hyphen at a line's end belongs to its word, by the rest of the page and the document."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from pipeline.reading.layout.model import HARD_HYPHEN, LINE_HYPHENS, NO_HYPHEN, SOFT_HYPHEN, Line

_LETTERS = r"[^\W\d_]"
_WORDS = re.compile(rf"{_LETTERS}+(?:-{_LETTERS}+)*(?:[{LINE_HYPHENS}-]\n{_LETTERS}+)?")
"""A word, a compound, or a word that continues on the next line."""

_LAST = re.compile(rf"(?<!{_LETTERS})({_LETTERS}+)[{SOFT_HYPHEN}-]$")
_FIRST = re.compile(rf"{_LETTERS}+")
_MAX_WORD = 80
_MAX_PART = 30
_MIN_PART = 3  # A shorter part that is a word elsewhere proves nothing: "in-formation".
_STEM = 6  # letters that two forms of a word share
_MIN_HABIT = 3  # so many compounds show that a text writes words with hyphens
_PAGE_COMPOUNDS, _PAGE_BROKEN, _PAGE_ALONE = 40, 40, 1_000
_COMPOUNDS, _BROKEN, _ALONE = 4_000, 4_000, 30_000
_KEPT = 600
_MIN_KEPT = 4  # so many broken words that keep their hyphen show that a document does not hyphenate

# English words that join the next word ("can-not" is not a compound), or the previous one ("frame-work").
_BEGINNINGS = (
    "all and any can every for her here him how in it may more my never no none not off on other our out over per some"
    " the them there through to under up what when where with your"
)
_ENDS = (
    "able age ages ally base book down ever form forms ground hood house land less like line lines mark marks name"
    " names place port room self set sets ship side some store thing things time times ward wards where wise word"
    " words work works"
)
_CLOSING, _CLOSED_ENDS = frozenset(_BEGINNINGS.split()), frozenset(_ENDS.split())

# English words that precede a hyphen, unless they grow into a longer word ("high-er", "short-hand").
_FIRSTS = (
    "cross double eight fast fine first five four full half hard high large left long low nine open right second self"
    " seven short single six slow small soft third three triple two well wide"
)
_OPEN_BEGINNINGS = frozenset(_FIRSTS.split())
_GROWTH = re.compile(
    "ary|ari.*|bow|brow|comings?|core|cover|cuts?|down|ed|een(th)?|en(ed|ing|s)?|er(s|ed|ing|cased?)?|eous.*|e?st|evity"
    "|ful(ly)?|hand.*|ing(s|ton)?|ish.*|ity|itud.*|lands?|less|light(s|ed|ing)?|lists?|ly|most|ness|ning|ov.*|roads?|s"
    "|ship.*|some|spread|spring|standing|t|teen(s|th)?|th|tones?|tons?|ty|wares?|walk|waves?|ways?|wired|wood|words?"
    "|[dhnry]"
)

# English words that follow a hyphen, whatever word precedes it. Some also end words of one piece ("rear-ranging").
_SECONDS = (
    "aware based bound centric coded colored coloured compatible compliant connected controlled dependent derived"
    " dimensional directed driven enabled encoded friendly funded generated grained guided highlighted independent"
    " induced intensive invariant labeled labelled layered linked looking managed optimised optimized ordered oriented"
    " owned powered processed produced proof ranging rated ready related resistant scale sensitive shaped sized"
    " specific structured supervised supplied supported tolerant trained tuned typed valued weighted written"
)
_OPEN_ENDS, _SYLLABLES = frozenset(_SECONDS.split()), frozenset({"ranging", "related", "written"})
_JOINING = "anti auto fore hyper inter micro mini multi over photo post pseudo retro semi super trans ultra under"
_PREFIXES = frozenset(_JOINING.split())
_ENGLISH = frozenset({"the", "of", "and"})


class Words(NamedTuple):
    """Evidence about hyphens: words that are `alone`, `compounds` (in lower case) within lines, and the parts of each
    word that is `broken` at a line's end."""

    alone: frozenset[str] = frozenset()
    compounds: frozenset[str] = frozenset()
    broken: frozenset[tuple[str, str]] = frozenset()


def words(lines: Iterable[Line]) -> Words:
    """Return the words, compounds and broken words of a page, a limited number of each."""
    texts = set(_WORDS.findall("\n".join(line.text for line in lines)))
    joined = [word for word in texts if "-" in word or "\n" in word]
    # "state-of-the-art" has three compounds, each a part with the next one.
    pairs = [pair for word in joined if "\n" not in word for pair in pairwise(word.casefold().split("-"))]
    compounds = {f"{a}-{b}" for a, b in pairs if 2 <= len(a) <= _MAX_PART and 2 <= len(b) <= _MAX_PART}
    broken = (tuple(re.split(rf"[{LINE_HYPHENS}-]\n", word)) for word in joined if "\n" in word)
    simple = [(first, second) for first, second in broken if "-" not in first and len(first + second) < _MAX_WORD]
    # Hyphenation never leaves a single letter at the end of a line.
    compounds |= {f"{first}-{second}".casefold() for first, second in simple if len(first) == 1}
    texts.difference_update(joined)
    return Words(
        frozenset(texts if len(texts) <= _PAGE_ALONE else sorted(texts)[:_PAGE_ALONE]),
        frozenset(sorted(compounds)[:_PAGE_COMPOUNDS]),
        frozenset(sorted(simple)[:_PAGE_BROKEN]),
    )


class Hyphenation:
    """Decides about words broken at line ends. `written`: compounds, and words without a hyphen."""

    def __init__(self, alone: Iterable[str], written: Iterable[str]) -> None:
        self._alone, self._written = frozenset(alone), frozenset(written)
        self._folded = {word.casefold() for word in self._alone}
        self._stems = {word[:_STEM] for word in self._alone}
        compounds = [word.split("-") for word in self._written if "-" in word]
        self._firsts, self._seconds = {word[0] for word in compounds}, {word[-1] for word in compounds}
        self._has_habit = len(compounds) >= _MIN_HABIT

    def mark(self, first: str, second: str) -> str:
        """Return the mark that keeps or drops the hyphen between two parts of a word, of which `first` ends a line;
        empty if neither the page nor the document decides."""
        whole = (first + second).casefold()
        if f"{first}-{second}".casefold() in self._written:
            return HARD_HYPHEN
        if whole in self._folded or whole in self._written:
            return NO_HYPHEN
        if self._is_compound(first.casefold(), second) or self._is_english_compound(first.casefold(), second):
            return HARD_HYPHEN
        return ""

    def _is_english_compound(self, first: str, second: str) -> bool:
        """Whether English writes these two words with a hyphen."""
        if not self._folded >= _ENGLISH or second in _CLOSED_ENDS:
            return False
        if first in _OPEN_BEGINNINGS:
            return len(second) >= _MIN_PART and not _GROWTH.fullmatch(second)
        if second not in _OPEN_ENDS or len(first) <= _MIN_PART or first in _CLOSING | _PREFIXES:
            return False
        return first in self._folded or (len(second) > _STEM and second not in _SYLLABLES)

    def _is_compound(self, first: str, second: str) -> bool:
        """Whether both parts are words or parts of compounds elsewhere, in a text that has compounds."""
        if not self._has_habit or min(len(first), len(second)) < _MIN_PART:
            return False
        if first in _CLOSING or second in _CLOSED_ENDS or (first not in self._firsts and first not in self._folded):
            return False
        known = second in self._seconds or second in self._alone or second in _OPEN_ENDS
        return known or (len(second) > _STEM and second[:_STEM] in self._stems)


def marked(lines: Sequence[Line], written: frozenset[str] = frozenset()) -> list[Line]:
    """Return the lines, given in the order of the source. Where the page or `written` (the document's words) decides
    about a hyphen at a line's end, a mark that keeps or drops it takes its place."""
    ends = [index for index in range(len(lines) - 1) if lines[index].text.endswith((SOFT_HYPHEN, "-"))]
    result = list(lines)
    if not ends:
        return result
    seen = words(lines)
    hyphenation = Hyphenation(seen.alone, seen.compounds | written)
    for index in ends:
        line = lines[index]
        last, first = _LAST.search(line.text[-_MAX_WORD:]), _FIRST.match(lines[index + 1].text[:_MAX_WORD])
        if last and first and (mark := hyphenation.mark(last.group(1), first.group())):
            spans = line.spans
            if spans:
                spans = (*spans[:-1], spans[-1]._replace(text=spans[-1].text[:-1] + mark))
            result[index] = line._replace(text=line.text[:-1] + mark, spans=spans)
    return result


class Vocabulary:
    """The words of a document, collected page by page in bounded memory."""

    def __init__(self) -> None:
        self._alone: set[str] = set()
        self._compounds: Counter[str] = Counter()
        self._broken: set[tuple[str, str]] = set()

    def add(self, page: Words) -> None:
        if len(self._alone) < _ALONE:
            self._alone |= page.alone
        if len(self._broken) < _BROKEN:
            self._broken |= page.broken
        if len(self._compounds) < _COMPOUNDS:
            self._compounds.update(sorted(page.compounds))  # sorted, so that ties break alike in every process

    def written(self) -> frozenset[str]:
        """Return at most 600 words that single pages cannot know: words broken somewhere, with a hyphen if they keep
        it, then common compounds."""
        hyphenation = Hyphenation(self._alone, self._compounds)
        marks = {parts: hyphenation.mark(*parts) for parts in sorted(self._broken)}
        counts = Counter(marks.values())
        if counts[HARD_HYPHEN] >= _MIN_KEPT and not counts[NO_HYPHEN]:
            marks = dict.fromkeys(marks, HARD_HYPHEN)  # Lines break only at hyphens inside words.
        needed = [("-" if mark == HARD_HYPHEN else "").join(parts).casefold() for parts, mark in marks.items() if mark]
        common = (word for word, _ in self._compounds.most_common())
        return frozenset(islice(dict.fromkeys([*needed[:_KEPT], *common]), _KEPT))
