"""Decides which of two texts of a page is better, and which pages a budget admits to another provider."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.flows.documents.rules.doubt import is_uncertain

NEVER = "none"
"""Instead of a provider: do not escalate, whatever the settings say."""
MAY_LACK = 1 / 3
"""An answer may lack this share of the words of which the earlier reading was sure. Of sure words on a noisy page, up
to a tenth are wrong, and joining divided words removes a few more; a refusal, a summary or invented text lacks most."""
ENOUGH = 8
"""With fewer sure words, a share says nothing."""
MOST_COST = 1_000_000
MOST_PAGES = 1_000_000
_ROUNDING = 1e-9

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}_])\w){{3,}}")
"""A word of three characters or more; of scripts without spaces, a single character."""
_BUDGET = re.compile(r"(\d{1,7}(?:\.\d{1,6})?|\.\d{1,6})(p?)", re.ASCII)


@dataclass(frozen=True)
class Budget:
    """The most that escalations may cost, and the most pages that they may send; None: no limit."""

    cost: float | None = None
    pages: int | None = None


def parse_budget(text: str) -> Budget:
    """Return a budget: `2.00` is money in the currency of the provider's prices, `20p` is pages; empty: no limit.

    Raises `ValueError`.
    """
    if not text:
        return Budget()
    match = _BUDGET.fullmatch(text.strip())
    if match and match[2] and "." not in match[1] and int(match[1]) <= MOST_PAGES:
        return Budget(pages=int(match[1]))
    if match and not match[2] and float(match[1]) <= MOST_COST:
        return Budget(cost=float(match[1]))
    raise ValueError(f"{text[:40]!r} is not a budget: write money, such as 2.00, or pages, such as 20p")


@dataclass(frozen=True)
class Room:
    """What a budget still admits: `budget` less what was `spent` and is `reserved` for open escalations, and less the
    `pages` that went already. `each`: the most that one page is expected to cost."""

    budget: Budget
    spent: float
    reserved: float
    pages: int
    each: float

    @property
    def now(self) -> int | None:
        """The number of pages that it admits now; None: any number."""
        limits = []
        if self.budget.pages is not None:
            limits.append(self.budget.pages - self.pages)
        if self.budget.cost is not None:
            left = self.budget.cost - self.spent - self.reserved
            if left <= _ROUNDING:
                limits.append(0)
            elif self.each > 0:
                limits.append(int((left + _ROUNDING) / self.each))
        return max(0, min(limits)) if limits else None

    @property
    def is_overdrawn(self) -> bool:
        """Whether the spent and the reserved money exceed the budget."""
        return self.budget.cost is not None and self.spent + self.reserved > self.budget.cost + _ROUNDING

    @property
    def is_spent(self) -> bool:
        """Whether it admits no page even if the open escalations cost nothing."""
        return Room(self.budget, self.spent, 0.0, self.pages, self.each).now == 0


@dataclass(frozen=True)
class Verdict:
    """Whether the new text replaces the earlier one, and why."""

    replaces: bool
    why: str


def judge(answer: str, text: str, layout: Mapping[str, Any] | None) -> Verdict:
    """Compare a provider's `answer` with the earlier `text` of the page and its `layout`.

    The answer replaces the text unless it is empty or the same, or lacks more than `MAY_LACK` of the words of which the
    earlier reading was sure. Answers that are truncated or fail their checks are errors and never get here.
    """
    if not answer.strip():
        return Verdict(False, "its answer is empty")
    if answer.strip() == text.strip():
        return Verdict(False, "its answer is the same text")
    sure = sure_words(text, layout)
    if len(sure) < ENOUGH:
        return Verdict(True, "recognition was sure of too few words to compare")
    lacking = len(sure - _words(answer)) / len(sure)
    if lacking > MAY_LACK:
        return Verdict(False, f"its answer lacks {lacking:.0%} of the words of which recognition was sure")
    return Verdict(True, f"its answer has {1 - lacking:.0%} of the words of which recognition was sure")


def sure_words(text: str, layout: Mapping[str, Any] | None) -> set[str]:
    """Return the words of `text` that its reading does not doubt: all but the uncertain and the garbled words of its
    `layout`; none if most of the text is uncertain."""
    facts = layout or {}
    if is_uncertain(facts.get("uncertain")):
        return set()
    doubted = [word["text"] for block in facts.get("blocks", ()) for word in block.get("uncertain", ())]
    return _words(text) - _words(" ".join([*doubted, *facts.get("garbled", ())]))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
