"""Take off what models put around an answer: thoughts, code fences, end-of-text tokens."""

import re
from collections.abc import Iterable

_MARKDOWN = re.compile(r"```[ \t]*+(?:markdown|md)", re.IGNORECASE)
_ANY = re.compile(r"```[ \t]*+\w*+")
_OPENING = re.compile(r"\s*+<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_CLOSING = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
)
_MAX_REMARK = 200
_OVERRIDES = re.compile(
    "[\u202a-\u202e\u2066-\u2069]|&#(?:0*8(?:23[4-8]|29[4-7])|x0*20(?:2[a-e]|6[6-9]));", re.IGNORECASE
)
"""Characters that show text in another order than it has, and references to them."""


def answer(raw: str, *, markdown: bool = True) -> tuple[str, bool]:
    """Return (the answer without thoughts, fences and end tokens, whether there are only thoughts). A Markdown answer
    keeps fences of other languages: the page may be a listing."""
    text = without_overrides(raw.replace("\r\n", "\n").replace("\x00", ""))
    opening = _OPENING.match(text)
    closing = _CLOSING.search(text)
    thoughts = False
    if opening and closing:
        text = text[closing.end() :]
        thoughts = not text.strip()
    elif opening:
        text, thoughts = "", True
    elif closing and text[closing.end() : closing.end() + 1] in {"\n", ""}:  # the server's template opened the thought
        text = text[closing.end() :]
        thoughts = not text.strip()
    return unwrap(_without_ends(text), _MARKDOWN if markdown else _ANY), thoughts


def _without_ends(text: str) -> str:
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = next((token for token in _ENDS if text.endswith(token, 0, end)), "")
        if not token:
            return text[:end]
        end -= len(token)


def without_overrides(text: str) -> str:
    """Return `text` without the characters that set its direction against that of its letters."""
    return _OVERRIDES.sub("", text)


def unwrap(text: str, fences: re.Pattern[str] = _MARKDOWN) -> str:
    """Return `text` without blank lines at its ends, and without a fence around all of it, or around all but a remark
    such as "Here is the page in Markdown:"."""
    lines = _trim(text.replace("\r\n", "\n").split("\n"))
    start = 0
    if len(lines) > 2 and len(lines[0]) < _MAX_REMARK and lines[0].rstrip().endswith(":"):
        start = 1 if lines[1].strip() else 2
    for first in (0, start):
        fence = lines[first].strip() if len(lines) >= first + 2 else ""
        if fences.fullmatch(fence) and lines[-1].strip() == "```" and _balanced(lines[first + 1 : -1]):
            return "\n".join(_trim(lines[first + 1 : -1]))
    return "\n".join(lines)


def _trim(lines: list[str]) -> list[str]:
    filled = [number for number, line in enumerate(lines) if line.strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _balanced(lines: Iterable[str]) -> bool:
    """Whether each fence inside is closed inside; otherwise the last line closes one of these and not the wrapper."""
    inside = False
    for line in lines:
        fence = line.strip()
        # A fence that names a language only ever opens a block.
        if fence == "```" or (fence.startswith("```") and not inside):
            inside = not inside
    return not inside
