"""Every regular expression takes linear time on any text: a slower one would block its process.

Patterns are found in the source, so that a new one is tested by being there.
"""

import re

import pytest

from tests.support.pattern_cost import Cost, TooManyError
from tests.support.patterns import all_uses

SIZE = 16

EXAMPLES = {
    "pipeline/flows/screenshots/rules/expansion.py f'(?<![a-z0-9_]){re.escape(name)}(?![a-z0-9_])'": r"(?<!\w)a(?!\w)",
    "pipeline/providers/presets.py pattern": r"granite-?docling",
    "pipeline/providers/replies.py beginning": r'"songs"\s*:\s*\[\s*|\[\s*(?=\{)',
    "pipeline/settings/config_file.py pattern": (
        r"""(?P<before>\s*+key\s*+=[^\S\r\n]*+)(?P<value>"(?:[^"\\]|\\.)*+"|'[^']*+'|(?:[^#"'\s]++|[^\S\r\n]++(?=[^#"'\s]))*+)"""
        r"(?P<after>[^\S\r\n]*+(?:#[^\r\n]*+)?+)(?P<end>\r?\n)?"
    ),
    "pipeline/storage/fusion.py '|'.join(patterns)": r"(?<!\w)(?:aab)\w*(?!\w)|(?<!\w)(?:ab)(?!\w)|字字|字",
}
"""Of patterns that are put together at run time: one of the kind."""

SHORT = {
    "pipeline/providers/presets.py pattern": "the name of a model in the settings, of at most 120 characters",
    "pipeline/reading/text/chunks.py _MARKS": "the first 1,000 characters of a heading",
}
"""Patterns that need not be linear, and what bounds the texts that they see."""


def growth(pattern: "re.Pattern", method: str) -> dict[str, int]:
    """By how many steps the cost of a text three times as long exceeds what would be linear; only where it does."""
    cost = Cost(pattern)
    excess = {}
    for pump in cost.pumps():
        try:
            once, twice, thrice = (cost.of(method, pump(SIZE * times)) for times in (1, 2, 3))
        except TooManyError:
            excess[repr(pump(2))] = 10**9
            continue
        if thrice - 2 * twice + once > 3 * SIZE:
            excess[repr(pump(2))] = thrice - 2 * twice + once
    return excess


@pytest.mark.slow
def test_every_pattern_is_linear():
    uses = all_uses()
    assert {*EXAMPLES, *SHORT} <= {use.name for use in uses}, "an exception names a pattern that is gone"
    slow = {
        (use.place, method): excess
        for use in uses
        if use.name not in SHORT
        for method in use.methods
        if (excess := growth(use.pattern or re.compile(EXAMPLES[use.name]), method))
    }
    assert slow == {}


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\A\s*```[a-zA-Z]*\s*\n(.*?)\n?```\s*\Z", "match"),
        (r"<tr>.*?</tr>", "search"),
        (r"(?:<!--.*?-->\s*)*<html", "match"),
        (r"\d+$", "search"),
        (r"(a|b|ab)*c", "fullmatch"),
    ],
)
def test_patterns_that_were_slow_would_be_noticed(pattern, method):
    assert growth(re.compile(pattern, re.DOTALL), method)
