"""Judge a parsed reply against what is known of the page."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pipeline.reading.replies.form import MAX_CHARACTERS, Parsed
from pipeline.reading.replies.repetition import Repetition

Code = Literal[
    "truncated",
    "repeated",
    "thoughts_only",
    "refusal",
    "filtered",
    "reasoning",
    "prompt_echo",
    "structure",
    "empty",
    "not_empty",
    "other_script",
    "low_recall",
    "unequal_table",
    "box_outside",
]
MINOR: frozenset[Code] = frozenset({"unequal_table", "box_outside"})
"""Problems that do not cost a page another pass."""
_WORD = re.compile(r"[^\W_]+")
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_COUNTED = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_]){{2,}}")
"""A word that counts when words are compared: two letters or more, since formulas scatter single ones; of scripts
without spaces, a single character."""
_REFUSAL = re.compile(
    r"(?:can(?:no|')?t|can not|unable to|not able to|won't)[^.\n]{1,60}"
    r"\b(?:image|picture|photo|document|page|text|content|file|request|assist|help|transcri)"
    r"|(?:please|could you|kindly) (?:provide|upload|share|attach|paste|send)[^.\n]{1,40}"
    r"\b(?:image|picture|photo|document|page|text|content|file)"
    r"|kann (?:das|dieses) (?:Bild|Dokument)[^.\n]{1,60}nicht|ne peux pas (?:lire|voir)|no puedo (?:leer|ver)"
    r"|(?:无法|不能)(?:识别|提供|转录|处理|查看)",
    re.IGNORECASE,
)
_SPEAKS = re.compile(r"\bI\b|\bAI\b|please|sorry|\bich\b|\bje\b|no puedo|抱歉|对不起|无法", re.IGNORECASE)
_REFUSAL_LENGTH = 600
_GARBAGE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffd]")
_GARBAGE_SHARE = 0.02
_TOKEN = re.compile(r"(?:<|&lt;)\\?[|｜]([\w▁]{1,40})\\?[|｜](?:>|&gt;)")
"""A token for programs, such as `<|im_end|>`, as Markdown may have escaped it."""
_TRUNCATED = frozenset({"length", "max_tokens", "max_output_tokens"})
_FEW, _RECALL, _ECHO, _ECHO_LINE = 20, 0.5, 0.6, 30
_SCRIPT_SHARE = 0.6
_JAPANESE = frozenset({"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HALFWIDTH"})


class Problem(NamedTuple):
    """A reason to doubt a reply: a `code` for programs, and a `detail` for people."""

    code: Code
    detail: str


@dataclass(frozen=True)
class Expected:
    """What is known of a page: the `words` of its text layer or of recognition (None: unknown), whether its picture is
    `blank` (None: unknown), its `script` by Unicode's first word, such as LATIN, CJK, ARABIC (empty: unknown), and the
    `prompt` that was sent."""

    words: Sequence[str] | None = None
    blank: bool | None = None
    script: str = ""
    prompt: str = ""


def check(raw: str, parsed: Parsed, *, finish_reason: str, expected: Expected) -> list[Problem]:
    """Return the problems of a reply, the gravest first. `finish_reason`: as the API gives it; empty if it does not."""
    found: list[Problem] = []
    if finish_reason in _TRUNCATED:
        found.append(Problem("truncated", "the reply stops at its token limit"))
    repetition = Repetition()
    if repetition.feed(raw[:MAX_CHARACTERS]) or repetition.close():
        found.append(Problem("repeated", "the reply repeats itself"))
    if parsed.only_thoughts:
        found.append(Problem("thoughts_only", "the reply holds thoughts and no answer"))
    text = parsed.text.strip()
    if finish_reason == "content_filter":
        found.append(Problem("refusal", "the provider's filter stopped the reply"))
    elif _refuses(text) and recall(text, expected.words or ()) < _RECALL:
        found.append(Problem("refusal", "the model refuses"))
    if _echoes(raw[:MAX_CHARACTERS], expected.prompt):
        found.append(Problem("prompt_echo", "the reply repeats the prompt"))
    if not parsed.complete:
        found.append(Problem("structure", "the reply lacks parts of its expected form"))
    if parsed.unequal_tables:
        found.append(Problem("unequal_table", f"{parsed.unequal_tables} tables have rows of unequal length"))
    if parsed.bad_boxes:
        found.append(Problem("box_outside", f"{parsed.bad_boxes} boxes lie outside the page or are inverted"))
    return found + _against_page(text, expected)


def _against_page(text: str, expected: Expected) -> list[Problem]:
    found: list[Problem] = []
    if not expected.blank and (garbage := _garbage(text, expected.words or ())):
        found.append(Problem("structure", garbage))
    words = _WORD.findall(text.casefold())
    known = [word.casefold() for word in expected.words or () if _WORD.search(word)]
    if not words:
        if len(known) >= 3 or expected.blank is False:
            found.append(Problem("empty", "the reply is empty, but the page has text"))
        return found
    if expected.blank and not known:
        found.append(Problem("not_empty", "the reply has text, but the page is blank"))
    script, share = script_of(text)
    wanted = expected.script.upper() or script_of(" ".join(known))[0]
    if wanted and script and script != wanted and share >= _SCRIPT_SHARE:
        found.append(Problem("other_script", f"the reply is in {script}, the page in {wanted}"))
    elif len(_counted(expected.words or ())) >= _FEW and (share := recall(text, expected.words or ())) < _RECALL:
        found.append(Problem("low_recall", f"the reply has {share:.0%} of the page's words"))
    return found


def _garbage(text: str, known_words: Sequence[str]) -> str:
    """Return why the text is none of a page; empty for other texts."""
    if len(_GARBAGE.findall(text)) > len(text) * _GARBAGE_SHARE:
        return "the reply has characters that no page shows"
    known = " ".join(known_words)
    # A page about models shows such tokens itself.
    left = next((match for match in _TOKEN.finditer(text.replace("\\_", "_")) if match[1] not in known), None)
    return f"the reply has the token <|{left[1]}|> in its text" if left else ""


def recall(text: str, known_words: Sequence[str]) -> float:
    """Return the share of the page's words that the text has; 0 if none is known."""
    known, words = Counter(_counted(known_words)), Counter(_COUNTED.findall(text.casefold()))
    return (known & words).total() / known.total() if known else 0.0


def _counted(words: Sequence[str]) -> list[str]:
    return _COUNTED.findall(" ".join(words).casefold())


def _refuses(text: str) -> bool:
    beginning = text.replace("’", "'")[:300]
    return len(text) < _REFUSAL_LENGTH and bool(_SPEAKS.search(beginning[:80]) and _REFUSAL.search(beginning))


def _echoes(raw: str, prompt: str) -> bool:
    lines = [line.strip() for line in prompt.split("\n") if len(line.strip()) >= _ECHO_LINE]
    echoed = sum(line in raw for line in lines)
    return bool(prompt.strip()) and (raw.strip() == prompt.strip() or (echoed > 1 and echoed >= len(lines) * _ECHO))


def script_of(text: str) -> tuple[str, float]:
    """Return the script of most letters of a text, by the first word of their Unicode names, and its share. Japanese
    kana count as CJK."""
    counts: Counter[str] = Counter()
    for letter in text[:20_000]:
        if letter.isalpha():
            script = unicodedata.name(letter, "").partition(" ")[0]
            counts["CJK" if script in _JAPANESE else script] += 1
    if not counts:
        return "", 0.0
    script, count = counts.most_common(1)[0]
    return script, count / counts.total()
